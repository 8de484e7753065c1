"""Who takes part where sites are named: by registered name, whatever comes first."""

from collections.abc import Sequence
from typing import Any

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedsuite.core.errors import RunError
from fedsuite.core.logs import log_scope
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.records import HELLO, TRAINING_ROWS
from fedsuite.rounds import membership
from fedsuite.rounds.membership import Directory
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import source_hash
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import matrix_app, run
from tests.rounds.registered import Registered

SITE_NODES = {1000: ("south", b"s"), 1001: ("north", b"n"), 1002: ("visitor", b"v")}
"""Nodes in the order in which they came; the sites are north and south."""


def site_directory(timeout: float = 1.0, source_hash: str | None = None) -> Directory:
    names = ("north", "south")
    return Directory("registered", 2, timeout, source_hash, None, names)


def test_a_site_is_known_by_its_registered_name_not_by_its_arrival() -> None:
    with flower_identity():
        found = site_directory().wait(Registered(matrix_app(), SITE_NODES), 1)
    assert list(found.client_ids) == [0, 1]
    assert found.nodes == {0: 1001, 1: 1000}
    assert found.names == {0: "north", 1: "south"}
    assert found.hosted, "the message says which client the node is"


def test_a_name_without_a_key_is_nobodys() -> None:
    nodes = {1000: ("south", b"s"), 1001: ("north", b"")}
    with (
        flower_identity(),
        pytest.raises(RunError, match=r"sites north did not connect within 0\.05 s"),
    ):
        site_directory(0.05).wait(Registered(matrix_app(), nodes), 1)


def test_whom_a_run_waits_for_is_said_at_once_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(membership, "AGAIN_S", 0.3)
    nodes = {1000: ("south", b"s")}
    with (
        flower_identity(),
        log_scope(run="mine"),
        pytest.raises(RunError, match="sites north did not connect"),
    ):
        site_directory(1.0).wait(Registered(matrix_app(), nodes), 1)
    told = capsys.readouterr().out.splitlines()
    words = "Waiting for nodes to connect: 1 connected (minimum required: 2)."
    assert set(told) == {f"{words} Not yet: north."}
    assert 2 <= len(told) <= 4, "not at each of the looks, which are many more"


def test_partitions_that_lack_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    directory = Directory("partition", 4, 0.5)
    grid = LocalGrid(matrix_app(), 4)
    grid.get_node_ids = lambda: [1000, 1002]  # type: ignore[method-assign]
    with (
        flower_identity(),
        log_scope(run="mine"),
        pytest.raises(RunError, match="start the others, partitions 1, 3, or raise"),
    ):
        directory.wait(grid, 1)
    (told,) = capsys.readouterr().out.splitlines()
    assert told.endswith("2 connected (minimum required: 4). Not yet: partitions 1, 3.")


def test_two_nodes_of_one_name() -> None:
    nodes = {1000: ("south", b"s"), 1001: ("north", b"n"), 1002: ("north", b"x")}
    with flower_identity(), pytest.raises(RunError, match="two SuperNodes are registered"):
        site_directory().wait(Registered(matrix_app(), nodes), 1)


def test_a_site_that_is_away_keeps_its_number() -> None:
    grid = Registered(matrix_app(), SITE_NODES)
    directory = site_directory()
    with flower_identity():
        directory.wait(grid, 1)
        grid.keys = {1000: ("south", b"s")}
        away = directory.wait(grid, 1)
        grid.keys = {1000: ("south", b"s"), 1002: ("north", b"another key")}
        back = directory.wait(grid, 1)
    assert (list(away.client_ids), away.nodes) == ([0, 1], {1: 1000})
    assert back.nodes == {0: 1002, 1: 1000}


class Greeted(Registered):
    """Registered nodes that count hellos, and of which some fail theirs."""

    failing: Sequence[int] = ()
    hellos: int = 0

    def _answer_here(self, message: Message) -> Message:
        self.hellos += message.metadata.message_type == HELLO
        if message.metadata.dst_node_id in self.failing:
            message.metadata.__dict__["_message_id"] = "failing"
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "its own log\nsays why")
            return Message(error, reply_to=message)
        return super()._answer_here(message)


def test_sites_are_greeted_once_and_visitors_never() -> None:
    grid = Greeted(matrix_app(), SITE_NODES)
    directory = site_directory()
    with flower_identity():
        directory.wait(grid, 1)
        directory.wait(grid, 1)
    assert grid.hellos == 2


def test_a_site_that_fails_its_hello_ends_the_start_and_not_a_later_round() -> None:
    grid = Greeted(matrix_app(), SITE_NODES)
    grid.failing = (1001,)
    with (
        flower_identity(),
        pytest.raises(RunError, match=r"site north failed the hello \(its own log"),
    ):
        site_directory().wait(grid, 1)
    directory = site_directory()
    grid.failing = ()
    with flower_identity():
        directory.wait(grid, 1)
        grid.keys = {1000: ("south", b"s")}
        directory.wait(grid, 1)
        grid.keys, grid.failing = SITE_NODES, (1001,)
        assert directory.wait(grid, 1).nodes == {1: 1000}
        grid.failing = ()
        assert directory.wait(grid, 1).nodes == {0: 1001, 1: 1000}


def test_a_site_with_other_code_ends_the_start() -> None:
    grid = Greeted(matrix_app(), SITE_NODES)
    with flower_identity():
        site_directory(source_hash=source_hash()).wait(grid, 1)
        with pytest.raises(RunError, match=r"^site (north|south) runs other fedsuite code"):
            site_directory(source_hash="f" * 64).wait(grid, 1)


def test_a_registered_node_is_called_by_its_name() -> None:
    grid = Greeted(matrix_app(), SITE_NODES)
    with (
        flower_identity(),
        pytest.raises(RunError, match=r"^node (north|south) runs other"),
    ):
        Directory("partition", None, 1.0, "f" * 64).wait(grid, 1)


def test_rounds_of_sites_report_their_names() -> None:
    """Client 0 is north, whose node came second: its samples are those of number 0."""
    strategy = FedAvg(
        identity="registered",
        num_clients=2,
        site_names=("north", "south"),
        min_available_nodes=1,
        connect_timeout=5.0,
    )
    trace = run(strategy, Registered(matrix_app(), SITE_NODES))
    assert [row["client"] for row in trace.reports[0].train.rows] == ["north", "south"]
    assert trace.weights == [pytest.approx(5 / 3)]


def greeted_with(
    facts: dict[int, Any], keys: dict[int, tuple[str, bytes]], name: str = "columns"
) -> Greeted:
    """Return a grid whose nodes say a fact, a hash of their columns; others say none."""

    class Told(Greeted):
        def _answer_here(self, message: Message) -> Message:
            reply = super()._answer_here(message)
            if message.metadata.message_type == HELLO:
                fact = facts.get(message.metadata.dst_node_id)
                if fact is not None:
                    reply.content.config_records["hello"][name] = fact
            return reply

    return Told(matrix_app(), keys)


def test_sites_of_other_columns_end_the_start_by_their_names() -> None:
    grid = greeted_with({1000: "a" * 64, 1001: "b" * 64}, SITE_NODES)
    with (
        flower_identity(),
        pytest.raises(
            RunError,
            match=r"^site (north|south) has other columns than site (?!\1)(north|south) "
            r"\(([ab])\3{11} and (?!\3)[ab]{12}\): compare",
        ),
    ):
        site_directory().wait(grid, 1)


@pytest.mark.parametrize("columns", [{}, {1000: "a"}, {1000: "a", 1001: "a", 1002: "b"}])
def test_sites_of_the_same_or_of_untold_columns_take_part(columns: dict[int, str]) -> None:
    grid = greeted_with(columns, SITE_NODES)
    with flower_identity():
        assert site_directory().wait(grid, 1).nodes == {0: 1001, 1: 1000}


def test_a_site_that_comes_later_with_other_columns_takes_no_part() -> None:
    columns = {1000: "a", 1001: "a"}
    grid = greeted_with(columns, SITE_NODES)
    directory = site_directory()
    with flower_identity():
        directory.wait(grid, 1)
        grid.keys = {1000: ("south", b"s")}
        directory.wait(grid, 1)
        grid.keys, columns[1001] = SITE_NODES, "b"
        assert directory.wait(grid, 1).nodes == {1: 1000}


@pytest.mark.parametrize(
    ("said", "known"),
    [(20, {1: 20}), (0, {1: 0}), (-1, {}), (2**60, {}), ("many", {}), (None, {})],
)
def test_a_sites_rows_are_what_it_says_first(
    said: Any, known: dict[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    rows = {1000: said}
    grid = greeted_with(rows, SITE_NODES, TRAINING_ROWS)
    directory = site_directory()
    with flower_identity(), caplog.at_level("INFO"):
        directory.wait(grid, 1)
        assert directory.training_rows == known
        grid.keys = {1001: ("north", b"n")}
        directory.wait(grid, 1)
        rows[1000] = 5000
        grid.keys = SITE_NODES
        directory.wait(grid, 1)
    if known.get(1):
        assert directory.training_rows == known
        assert "site south has 20 training rows" in caplog.text
        assert "5000 training rows, and counts for 20, which it said first" in caplog.text


def test_a_site_counts_for_no_more_rows_than_it_has() -> None:
    """South has 3 rows by its hello, or 1 by what the operators wrote; it claims 2."""
    for given, examples in (({}, 2.0), ({1: 1}, 1.0)):
        strategy = FedAvg(
            identity="registered",
            num_clients=2,
            site_names=("north", "south"),
            min_available_nodes=1,
            connect_timeout=5.0,
            training_rows=given,
        )
        grid = greeted_with({1000: 3, 1001: 1}, SITE_NODES, TRAINING_ROWS)
        rows = run(strategy, grid).reports[0].train.rows
        assert [row["num_examples"] for row in rows] == [1.0, examples]
