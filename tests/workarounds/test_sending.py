"""Messages that Flower refuses: told at once, in whatever way a Grid tells of them."""

import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from flwr.app import Error, Message, RecordDict

from fedsuite.core.errors import RunError
from fedsuite.engines.local import LocalGrid
from fedsuite.rounds import outstanding
from fedsuite.rounds.membership import Directory
from fedsuite.strategies import FedAvg, FedBuff
from fedsuite.workarounds import prompt_grid, sending
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.packed import packing_mod
from fedsuite.workarounds.packed_grid import PackedGrid
from fedsuite.workarounds.prompt_grid import PromptGrid
from fedsuite.workarounds.sending import REFUSED
from tests.helpers import Trace, mark, matrix_app, run
from tests.rounds.registered import Registered
from tests.rounds.test_site_membership import SITE_NODES, site_directory
from tests.workarounds.refusing import WAYS, PromptRefusingGrid, RefusingGrid
from tests.workarounds.test_prompt_grid import echo_app, sources

REASON = "Flower refused the message to its node"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody waits in these tests: a message that is refused needs no pause."""

    class Clock:
        monotonic = staticmethod(lambda: 0.0)

        @staticmethod
        def sleep(seconds: float) -> None:
            raise AssertionError("waited for a message that was refused")

    monkeypatch.setattr(prompt_grid, "time", Clock)
    monkeypatch.setattr(outstanding, "time", Clock)
    with flower_identity():
        yield


def queries(*nodes: int) -> list[Message]:
    return [Message(RecordDict(), node, "query") for node in nodes]


def refused_in(replies: list[Message]) -> list[int]:
    return [
        reply.metadata.src_node_id
        for reply in replies
        if reply.has_error() and reply.error.code == REFUSED
    ]


@pytest.mark.parametrize("refused", [[], [1000], [1001], [1000, 1002], [1000, 1001, 1002]])
@pytest.mark.parametrize("way", WAYS)
def test_each_message_has_one_answer_of_its_own_node(way: str, refused: list[int]) -> None:
    inner = RefusingGrid(echo_app(), 3, way=way, refused=refused)
    replies = list(PromptGrid(inner).send_and_receive(queries(1000, 1001, 1002)))
    assert sorted(sources(replies)) == [1000, 1001, 1002]
    assert refused_in(replies) == refused
    # Only where nobody can tell which messages were taken, they are sent again.
    assert bool(inner._replies) == (way == "copies-left-out" and 0 < len(refused) < 3)


@pytest.mark.parametrize("way", WAYS)
def test_errors_of_dead_nodes_name_the_right_ones(way: str) -> None:
    """The SuperLink is node 1, and answers for the dead."""

    class Dead(RefusingGrid):
        def _answer_here(self, message: Message) -> Message:
            return mark(Message(Error(5, "gone"), reply_to=message), src_node_id=1)

    inner = Dead(echo_app(), 3, way=way, refused=[1001])
    replies = list(PromptGrid(inner).send_and_receive(queries(1000, 1001, 1002)))
    assert sorted(sources(replies)) == [1000, 1001, 1002]
    assert refused_in(replies) == [1001]


@pytest.mark.parametrize("way", WAYS)
def test_packed_messages_are_paired_too(way: str) -> None:
    inner = RefusingGrid(matrix_app(mods=[packing_mod]), 3, way=way, refused=[1001])
    trace = run(FedAvg(), PackedGrid(inner), 2)  # type: ignore[arg-type]
    assert rejected(trace) == {(1, 1001), (2, 1001)}
    assert trace.weights[-1] > 0


def rejected(trace: Trace) -> set[tuple[int, int | None]]:
    """Return round and client of the refused messages; nothing else may be rejected."""
    found = [r for t in trace.reports for r in t.train.rejections]  # type: ignore[union-attr]
    assert all(r.reason.startswith(REASON) for r in found)
    return {(r.server_round, r.client_id) for r in found}


@pytest.mark.parametrize("refused", [[1001], [1000, 1002]])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["fedavg", "fedbuff"])
def test_a_round_tells_of_each_client_and_goes_on(
    method: str, way: str, refused: list[int]
) -> None:
    grid: Any
    if method == "fedavg":
        strategy: FedAvg = FedAvg(quorum=1)
        grid = PromptRefusingGrid(matrix_app(), 3, way=way, refused=refused)
    else:
        strategy = FedBuff(fedbuff_delays="real", fedbuff_share=1.0, quorum=1)
        grid = RefusingGrid(matrix_app(), 3, way=way, refused=refused)
    trace = run(strategy, grid, 2)
    assert rejected(trace) == {(r, k) for r in (1, 2) for k in refused}
    for report in trace.reports:
        assert report.metrics["replies_rejected"] >= len(refused)
        rows = {row["client"] for row in report.train.rows}  # type: ignore[union-attr]
        assert rows == {1000, 1001, 1002} - set(refused)


def test_a_client_is_asked_again_when_its_message_is_taken() -> None:
    grid = RefusingGrid(matrix_app(), 3, refused=[1000, 1001])
    strategy = FedBuff(fedbuff_delays="real", fedbuff_share=1.0, quorum=1)

    class Mended(Trace):
        def on_round_end(self, *args: Any) -> None:
            super().on_round_end(*args)
            grid.refused = set()

    mended = Mended()
    trace = run(strategy, grid, 2, callbacks=[mended])
    rows = [[row["client"] for row in t.train.rows] for t in trace.reports]  # type: ignore[union-attr]
    assert rows == [[1002], [1000, 1001, 1002]]


# Flower's own Grids, of the version that is installed


class State:
    """What Flower's simulation keeps of messages, without nodes."""

    def __init__(self, refused: set[int]) -> None:
        self.refused = refused
        self.taken: dict[str, Message] = {}

    def state(self) -> "State":
        return self

    def store_message_ins(self, message: Message) -> str | None:
        if message.metadata.dst_node_id in self.refused:
            return None
        self.taken[message.metadata.message_id] = message
        return message.metadata.message_id

    def get_message_res(self, message_ids: set[str], run_id: int) -> list[Message]:
        assert message_ids == set(self.taken)
        return [Message(RecordDict(), reply_to=message) for message in self.taken.values()]

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        for key in message_ins_ids:
            del self.taken[key]


def memory_grid(refused: set[int]) -> Any:
    from flwr.supercore.run import Run
    from flwr.superlink.grid import InMemoryGrid

    grid = InMemoryGrid(State(refused))  # type: ignore[arg-type]
    grid._run = Run.create_empty(1)
    return grid


def http_grid(refused: set[int], *, too_large: bool) -> Any:
    """Return the Grid between machines, with its requests replaced."""
    pytest.importorskip("flwr.superlink.grid.http_grid", reason="Flower 1.39 has gRPC")
    httpx = importlib.import_module("httpx")
    module: Any = importlib.import_module("flwr.superlink.grid.http_grid")

    class Requests(module.HttpGrid):  # type: ignore[misc]
        taken: ClassVar[dict[str, Message]] = {}

        def _try_push_messages(self, run_id: int, messages: Any) -> list[str]:
            ids = []
            for message in messages:
                if message.metadata.dst_node_id not in refused:
                    self.taken[message.metadata.message_id] = message
                    ids.append(message.metadata.message_id)
                elif too_large:
                    response = httpx.Response(413)
                    raise httpx.HTTPStatusError("413", request=None, response=response)
                else:
                    ids.append("")
            return ids

        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = [self.taken.pop(key) for key in message_ids]
            return [Message(RecordDict(), reply_to=message) for message in found]

    grid = Requests(token="token")
    grid._run = memory_grid(set())._run
    return grid


@pytest.mark.parametrize("refused", [set(), {7}, {6, 8}, {6, 7, 8}])
@pytest.mark.parametrize("kind", ["memory", "http-refused", "http-too-large"])
def test_flowers_own_grids(kind: str, refused: set[int]) -> None:
    if kind == "memory":
        grid = memory_grid(refused)
    else:
        grid = http_grid(refused, too_large=kind.endswith("large"))
    replies = list(PromptGrid(grid).send_and_receive(queries(6, 7, 8)))
    assert sorted(sources(replies)) == [6, 7, 8]
    assert refused_in(replies) == sorted(refused)
    nodes, errors = sending.push(grid, queries(6, 7, 8))
    assert sorted(nodes.values()) == sorted({6, 7, 8} - refused)
    assert refused_in(errors) == sorted(refused)


def test_a_strategy_puts_a_prompt_grid_around_flowers_own_alone() -> None:
    flowers, other = memory_grid(set()), RefusingGrid(echo_app(), 1)
    around = PromptGrid.around(flowers)
    assert type(around) is PromptGrid
    assert PromptGrid.around(around) is around
    assert PromptGrid.around(other) is other


# The hello


def refused_hello(message: Message) -> Message:
    return Message(Error(REFUSED, REASON), reply_to=message)


def test_a_site_whose_hello_is_refused_is_away_and_no_failure() -> None:
    """It is asked again in the next round, as soon as Flower takes the message."""

    class Gone(Registered):
        gone = True

        def _answer_here(self, message: Message) -> Message:
            if self.gone and message.metadata.dst_node_id == 1001:
                return refused_hello(message)
            return super()._answer_here(message)

    grid = Gone(matrix_app(), SITE_NODES)
    directory = site_directory()
    assert directory.wait(grid, 1).nodes == {1: 1000}
    grid.gone = False
    assert directory.wait(grid, 1).nodes == {0: 1001, 1: 1000}


def test_a_hello_that_is_refused_at_each_look_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refused(LocalGrid):
        def send_and_receive(self, messages: Any, **options: Any) -> Any:
            return iter([refused_hello(message) for message in messages])

    with pytest.raises(RunError, match="only 0 of 1 SuperNodes"):
        Directory("partition", 1, 0.5).wait(Refused(matrix_app(), 1), 1)
    told = [r for r in caplog.records if "did not answer the hello" in r.getMessage()]
    assert len(told) == 1
