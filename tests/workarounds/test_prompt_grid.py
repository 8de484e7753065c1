"""The Grid that looks for replies soon: what it sends, waits for and gives up."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedsuite.engines.local import LocalGrid
from fedsuite.strategies import FedAvg
from fedsuite.workarounds import prompt_grid
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.packed_grid import PackedGrid
from fedsuite.workarounds.prompt_grid import PromptGrid
from fedsuite.workarounds.sending import CONNECTED_EVERY_S
from tests.helpers import TamperingGrid, matrix_app, run


def echo_app() -> ClientApp:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    return app


class Clock:
    """Time that passes only while somebody sleeps, or works for a reply."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class SlowGrid(LocalGrid):
    """Replies can be pulled so many seconds after they were asked for, by node."""

    def __init__(self, clock: Clock, delays: dict[int, float]) -> None:
        super().__init__(echo_app(), 3)
        self._clock, self._delays = clock, delays
        self._due: dict[str, float] = {}
        self.looks = 0
        self.seconds_a_look = 0.0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed: list[str] = []
        for message in messages:
            (key,) = super().push_messages([message])
            delay = self._delays.get(message.metadata.dst_node_id, 0.0)
            self._due[key] = self._clock.now + delay
            pushed.append(key)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.looks += 1
        self._clock.now += self.seconds_a_look
        ready = [key for key in message_ids if self._due[key] <= self._clock.now]
        return super().pull_messages(ready)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(prompt_grid, "time", clock)
    with flower_identity():
        yield clock


def hellos(*nodes: int) -> list[Message]:
    return [Message(RecordDict(), node, "query") for node in nodes]


def sources(replies: Iterable[Message]) -> list[int]:
    return [reply.metadata.src_node_id for reply in replies]


def test_replies_come_as_they_are_there(clock: Clock) -> None:
    grid = PromptGrid(SlowGrid(clock, {1000: 2.0, 1001: 0.0, 1002: 0.5}))
    replies = grid.send_and_receive(hellos(1000, 1001, 1002))
    assert next(replies).metadata.src_node_id == 1001
    assert clock.now == 1000.0
    assert sources(replies) == [1002, 1000]
    assert clock.now == pytest.approx(1002.0, abs=0.11)


@pytest.mark.parametrize("delay", [0.05, 1.0, 7.0, 60.0, 3600.0])
def test_a_pause_adds_a_twentieth_at_most_and_never_more_than_a_second(
    clock: Clock, delay: float
) -> None:
    grid = PromptGrid(SlowGrid(clock, {1000: delay}))
    assert sources(grid.send_and_receive(hellos(1000))) == [1000]
    over = clock.now - 1000.0 - delay
    assert 0 <= over <= min(max(0.1, 0.05 * delay), 1.0) + 1e-6
    assert min(clock.pauses) >= 0.1


def test_a_shorter_pause_may_be_asked_for(clock: Clock) -> None:
    grid = PromptGrid(SlowGrid(clock, {1000: 0.025}), shortest_pause=0.01)
    assert sources(grid.send_and_receive(hellos(1000))) == [1000]
    assert clock.pauses == [0.01, 0.01, 0.01]


def test_looks_that_take_long_take_a_fifth_of_the_time(clock: Clock) -> None:
    slow = SlowGrid(clock, {1000: 1.0, 1001: 0.0})
    slow.seconds_a_look = 0.05
    grid = PromptGrid(slow, shortest_pause=0.01)
    replies = grid.send_and_receive(hellos(1000, 1001))
    assert next(replies).metadata.src_node_id == 1001
    # Time that somebody took for a reply is no time of the look.
    clock.now += 0.1
    assert sources(replies) == [1000]
    # The first look found something; 0.15 s of waiting are less than the shortest pause.
    assert clock.pauses[0] == pytest.approx(0.01)
    assert clock.pauses[1:] == pytest.approx([0.2] * (len(clock.pauses) - 1))


def test_messages_are_sent_before_anybody_asks_for_a_reply(clock: Clock) -> None:
    slow = SlowGrid(clock, {1000: 5.0})
    replies = PromptGrid(slow).send_and_receive(hellos(1000))
    clock.now += 5.0
    assert sources(replies) == [1000]
    assert clock.pauses == []


def test_the_deadline(clock: Clock) -> None:
    """What came in time is taken, what did not is left, and nobody waits longer."""
    grid = PromptGrid(SlowGrid(clock, {1000: 9.99, 1001: 10.5, 1002: 1.0}))
    replies = grid.send_and_receive(hellos(1000, 1001, 1002), timeout=10.0)
    assert sources(replies) == [1002, 1000]
    assert clock.now == pytest.approx(1010.0)


def test_no_time_at_all_is_one_look(clock: Clock) -> None:
    slow = SlowGrid(clock, {1000: 0.0, 1001: 0.1})
    replies = PromptGrid(slow).send_and_receive(hellos(1000, 1001), timeout=0.0)
    assert sources(replies) == [1000]
    assert slow.looks == 1 and clock.pauses == []


def test_the_error_of_a_dead_node_names_the_node(clock: Clock) -> None:
    """The SuperLink is node 1, and answers for the dead."""

    class Deadly(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            replies = super().pull_messages(message_ids)
            for k, reply in enumerate(replies):
                if reply.metadata.src_node_id == 1001:
                    replies[k] = Message(Error(5, "gone"), reply_to=asked[1])
                    replies[k].metadata.__dict__["_src_node_id"] = 1
            return replies

    asked = hellos(1000, 1001)
    replies = list(PromptGrid(Deadly(clock, {})).send_and_receive(asked))
    assert sorted(sources(replies)) == [1000, 1001]
    assert [r.metadata.src_node_id for r in replies if r.has_error()] == [1001]


def test_a_grid_may_hand_out_what_it_finds_one_by_one(clock: Clock) -> None:
    class Lazy(SlowGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:  # type: ignore[override]
            for key in message_ids:
                yield from super().pull_messages([key])

    grid = PromptGrid(Lazy(clock, {1001: 0.5}))
    found = sources(grid.send_and_receive(hellos(1000, 1001, 1002)))
    assert sorted(found) == [1000, 1001, 1002] and found[-1] == 1001


def test_all_else_is_flowers_own(clock: Clock) -> None:
    inner = SlowGrid(clock, {})
    grid = PromptGrid(inner)
    assert grid.get_node_ids() == inner.get_node_ids() == [1000, 1001, 1002]
    assert [info.node_id for info in grid.get_nodes()] == [1000, 1001, 1002]
    assert grid.run == inner.run
    message = grid.create_message(RecordDict(), "train", 1001, "3", 7.0)
    assert (message.metadata.dst_node_id, message.metadata.ttl) == (1001, 7.0)
    (key,) = grid.push_messages(hellos(1002))
    assert sources(grid.pull_messages([key])) == [1002]
    assert sources(grid.send_and_receive([])) == []


def test_a_node_that_is_gone_is_not_waited_for(clock: Clock) -> None:
    """As in Flower 1.43, whose SuperLink does not answer for it; node 1002 is slow."""

    class Left(SlowGrid):
        def get_node_ids(self) -> list[int]:
            gone = {1000, 1001} if self._clock.now >= 1003.0 else set()
            return [node for node in super().get_node_ids() if node not in gone]

    # The first replies in its last moment, the second would much later.
    grid = PromptGrid(Left(clock, {1000: 4.99, 1001: 3600.0, 1002: 60.0}))
    replies = grid.send_and_receive(hellos(1000, 1001, 1002))
    first, second = next(replies), next(replies)
    assert first.has_content() and first.metadata.src_node_id == 1000
    assert second.error.code == ErrorCode.NODE_UNAVAILABLE
    assert second.metadata.src_node_id == 1001
    assert clock.now <= 1000.0 + CONNECTED_EVERY_S + 1.0
    assert sources(replies) == [1002]


def test_a_reply_that_cannot_be_fetched_ends_the_round_by_its_deadline(
    clock: Clock,
) -> None:
    """Flower 1.43 logs it and hands out no error: its node stays connected."""

    class Skipping(TamperingGrid):
        def pull_messages(self, ids: Iterable[str]) -> list[Message]:  # type: ignore[override]
            found = super().pull_messages(ids)
            return [reply for reply in found if reply.metadata.src_node_id != 1001]

    grid: Any = PromptGrid(Skipping(matrix_app(), 3))
    trace = run(FedAvg(quorum=1), grid, 2)
    found = [rejection for t in trace.reports for rejection in t.train.rejections]  # type: ignore[union-attr]
    assert [(r.server_round, r.client_id, r.reason) for r in found] == [
        (1, 1001, "no reply before the deadline"),
        (2, 1001, "no reply before the deadline"),
    ]


def test_the_signature_of_pull_messages_in_flower_1_43(clock: Clock) -> None:
    asked: list[tuple[Any, ...]] = []

    class Later(SlowGrid):
        def pull_messages(self, *ids: Any) -> list[Message]:  # type: ignore[override]
            asked.append(ids)
            return []

    for grid in (PromptGrid(Later(clock, {})), PackedGrid(Later(clock, {}))):
        for words in ({"message_ids": ["a"]}, {"reply_to_message_ids": ["a"]}, {}):
            assert list(grid.pull_messages(**words)) == []
        assert list(grid.pull_messages(["a"])) == []
    assert asked == [(["a"],), (["a"],), (), (["a"],)] * 2
