"""Who takes part: identities, waiting with a deadline, and seeded sampling."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import RunError
from fedsuite.engines.local import LocalGrid
from fedsuite.rounds.membership import Directory, Members, sample_clients
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import source_hash
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import MEAN_OF_ALL, TamperingGrid, matrix_app, run, strategy_for
from tests.rounds.registered import Registered

# Sampling


@given(st.integers(0, 2**31), st.integers(1, 1000), st.integers(0, 30))
def test_sample_is_sorted_distinct_and_repeatable(
    seed: int, server_round: int, count: int
) -> None:
    clients = [3 * k for k in range(20)]
    chosen = sample_clients(clients, count, seed, server_round, "sample-train")
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(clients)
    assert len(chosen) == min(count, 20)
    assert chosen == sample_clients(clients, count, seed, server_round, "sample-train")


def test_seed_round_and_purpose_each_matter() -> None:
    def draw(seed: int = 0, server_round: int = 1, purpose: str = "sample-train"):
        return sample_clients(range(1000), 20, seed, server_round, purpose)

    draws = [draw(), draw(seed=1), draw(server_round=2), draw(purpose="sample-evaluate")]
    assert len({tuple(chosen) for chosen in draws}) == 4


def test_sampling_is_uniform() -> None:
    """Chi-square over 10 clients, 3 of 10 in 2000 rounds: expected 600 each."""
    counts = np.zeros(10)
    for server_round in range(1, 2001):
        counts[sample_clients(range(10), 3, 0, server_round, "sample-train")] += 1
    statistic = ((counts - 600) ** 2 / (600 * 0.7)).sum() * 9 / 10
    assert statistic < 27.9, "the 0.1 % point of chi-square with 9 degrees of freedom"


def trained(trace) -> list[list[int]]:
    return [[row["client"] for row in report.train.rows] for report in trace.reports]


def run_sampled(layout: str = "hosted", num_rounds: int = 5, **options: Any):
    grid = TamperingGrid(matrix_app(), 3)
    return trained(
        run(strategy_for(layout, clients_per_round=2, **options), grid, num_rounds)
    )


def test_rounds_sample_as_the_pure_function_does() -> None:
    expected = [sample_clients(range(3), 2, 7, r, "sample-train") for r in range(1, 6)]
    assert run_sampled(seed=7) == expected
    assert len({tuple(clients) for clients in expected}) > 1


def test_fraction_and_least_number() -> None:
    def sizes(**options: Any) -> tuple[int, int]:
        grid = TamperingGrid(matrix_app(values=[1.0] * 10, counts=[1] * 10), 10)
        report = run(FedAvg(**options), grid).reports[0]
        evaluated = 0 if report.evaluate is None else len(report.evaluate.rows)
        return (0 if report.train is None else len(report.train.rows)), evaluated

    assert sizes() == (10, 10)
    assert sizes(fraction_train=0.5, fraction_evaluate=0.2) == (5, 2)
    assert sizes(fraction_train=0.01, fraction_evaluate=0.01) == (2, 2)  # as in Flower
    assert sizes(fraction_train=0.01, min_train_nodes=3) == (3, 10)
    assert sizes(fraction_train=0.5, clients_per_round=4) == (4, 10)
    assert sizes(fraction_evaluate=0.01, min_evaluate_nodes=2) == (10, 2)
    assert sizes(fraction_train=0.0, fraction_evaluate=0.0) == (0, 0)


@pytest.mark.parametrize("options", [{"fraction_train": 1.5}, {"fraction_evaluate": -0.1}])
def test_fraction_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected 0 to 1"):
        FedAvg(**options)


def test_evaluation_every_second_round_and_after_the_last() -> None:
    grid = TamperingGrid(matrix_app(), 3)
    trace = run(strategy_for("single", evaluate_every=2), grid, 5)
    assert [report.evaluate is not None for report in trace.reports] == [
        False,
        True,
        False,
        True,
        True,
    ]
    with pytest.raises(ValueError, match="evaluate_every = 0"):
        FedAvg(evaluate_every=0)


# Nodes that come and go


class Attendance(LocalGrid):
    """A local grid on which only some nodes are there, by call of ``get_node_ids``."""

    def __init__(self, app: ClientApp, num_nodes: int, present: Sequence[Sequence[int]]):
        super().__init__(app, num_nodes)
        self._present = list(present)

    def get_node_ids(self) -> list[int]:
        present = self._present[0]
        if len(self._present) > 1:
            self._present.pop(0)
        return [1000 + index for index in present]


def test_missing_node_does_not_change_the_draw() -> None:
    """Its clients are drawn as before, and counted as missing."""
    full, partial = [0, 1, 2], [0, 2]
    app = matrix_app()
    calm = run(strategy_for("hosted", clients_per_round=2), Attendance(app, 3, [full]), 6)
    # A round looks twice: before training and before evaluation.
    grid = Attendance(app, 3, [full, full, partial])
    lossy = run(strategy_for("hosted", clients_per_round=2), grid, 6)
    for report, drawn in zip(lossy.reports[1:], trained(calm)[1:], strict=True):
        missing = [(r.client_id, r.reason) for r in report.train.rejections]
        assert [row["client"] for row in report.train.rows] == [k for k in drawn if k != 1]
        assert missing == [(1, "its node is not connected")] * (1 in drawn)
    assert any(1 in drawn for drawn in trained(calm)[1:])


def test_round_1_waits_for_all_partitions() -> None:
    grid = Attendance(matrix_app(), 3, [[], [2], [0, 2], [0, 1, 2]])
    trace = run(strategy_for("hosted"), grid)
    assert trace.weights == [MEAN_OF_ALL]


def test_node_that_comes_back_is_asked_again() -> None:
    grid = Attendance(matrix_app(), 3, [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [0, 1, 2]])
    trace = run(strategy_for("hosted"), grid, 3)
    assert [len(report.train.rows) for report in trace.reports] == [3, 2, 3]


def test_directory_says_who_is_there_at_each_look() -> None:
    """Whoever was there before: some look at what they were told last."""
    everybody, looks = [0, 1, 2], [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [2], [0, 1, 2]]
    directory = Directory("partition", 6, 1.0)
    grid = Attendance(matrix_app(), 3, looks)
    with flower_identity():
        found = [directory.wait(grid, 1) for _ in looks]
    for look, told in zip(looks, found, strict=True):
        assert told.nodes == {k: 1000 + k % 3 for k in range(6) if k % 3 in look}
    assert found[1] is found[0], "nothing is reckoned again where nobody came or went"
    assert found[-1] == found[0] and looks[-1] == everybody


def placed_app(places: dict[int, tuple[int, int]]) -> ClientApp:
    """Return an app whose nodes have these partitions, of so many."""

    def place(message: Message, context: Context, call_next: Any) -> Message:
        partition, total = places[context.node_id]
        context.node_config.update({"partition-id": partition, "num-partitions": total})
        return call_next(message, context)

    return matrix_app(mods=[place])


def test_the_newest_node_of_a_partition_wins_whatever_its_number() -> None:
    app = placed_app({1000: (0, 2), 1001: (0, 2), 1002: (1, 2), 1003: (1, 2)})
    grid = Attendance(app, 4, [[1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 3]])
    directory = Directory("partition", 2, 1.0)
    with flower_identity():
        found = [directory.wait(grid, 1).nodes for _ in range(4)]
    last = {0: 1000, 1: 1003}
    assert found == [{0: 1001, 1: 1002}, {0: 1000, 1: 1002}, last, last]


def test_a_node_that_failed_the_hello_is_asked_at_each_look() -> None:
    """It is connected as before, and still no member."""
    asked: list[int] = []

    class Deaf(Attendance):
        def send_and_receive(self, messages: Iterable[Message], **options: Any) -> Any:
            for message in messages:
                asked.append(message.metadata.dst_node_id)
                if asked.count(1001) < 3 and asked[-1] == 1001:
                    error = Error(ErrorCode.NODE_UNAVAILABLE, "away")
                    yield Message(error, reply_to=message)
                else:
                    yield from super().send_and_receive([message], **options)

    directory = Directory("partition", 2, 1.0)
    grid = Deaf(placed_app({1000: (0, 1), 1001: (0, 1)}), 2, [[0], [0, 1]])
    with flower_identity():
        hosts = [directory.wait(grid, 1).nodes[0] for _ in range(4)]
    assert hosts == [1000, 1000, 1000, 1001]
    assert asked == [1000, 1001, 1001, 1001]


@pytest.mark.parametrize("layout", ["single", "hosted"])
def test_nodes_that_do_not_come_before_the_deadline(layout: str) -> None:
    given = {"min_available_nodes": 3, "connect_timeout": 0.05}
    strategy = strategy_for(layout, **given)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"only 2 of 3 SuperNodes connected within 0\.05 s"):
        run(strategy, Attendance(matrix_app(), 3, [[0, 2]]))
    assert time.monotonic() - began < 5


def test_nobody_at_all() -> None:
    strategy = strategy_for("hosted", connect_timeout=0.05)
    with pytest.raises(RunError, match="only 0 of 1 SuperNodes"):
        run(strategy, Attendance(matrix_app(), 3, [[]]))


# Identities


def test_unknown_identity() -> None:
    with pytest.raises(ValueError, match="expected node, partition or registered"):
        Directory("name", None, 1.0)  # type: ignore[arg-type]


def members(grid: LocalGrid, *options: Any) -> Members:
    with flower_identity():
        return Directory(*options).wait(grid, 1)


def test_node_identity_is_flowers_node_id() -> None:
    found = members(LocalGrid(ClientApp(), 3), "node", None, 1.0)
    assert list(found.client_ids) == [1000, 1001, 1002]
    assert found.nodes == {1000: 1000, 1001: 1001, 1002: 1002}
    assert not found.hosted


@pytest.mark.parametrize(
    ("num_clients", "nodes"),
    [
        (None, {0: 1000, 1: 1001}),
        (5, {0: 1000, 1: 1001, 2: 1000, 3: 1001, 4: 1000}),
        (1, {0: 1000}),
    ],
)
def test_partition_identity_puts_clients_on_partitions_in_turn(
    num_clients: int | None, nodes: dict[int, int]
) -> None:
    found = members(LocalGrid(matrix_app(), 2), "partition", num_clients, 1.0)
    assert found.nodes == nodes
    assert list(found.client_ids) == list(nodes)
    assert found.hosted


def test_registered_identity_follows_the_key_not_the_node() -> None:
    keys = {1000: ("north", b"key-n"), 1001: ("south", b"key-s"), 1002: ("", b"key-x")}
    app = matrix_app()
    before = members(Registered(app, keys), "registered", None, 1.0)
    by_name = {before.names.get(client): client for client in before.client_ids}
    assert before.nodes[by_name["north"]] == 1000
    assert list(before.client_ids) == sorted(before.client_ids)
    # The same SuperNodes come back under other node ids.
    swapped = {1000: keys[1001], 1001: keys[1000], 1002: keys[1002]}
    after = members(Registered(app, swapped), "registered", None, 1.0)
    assert after.client_ids == before.client_ids
    assert after.nodes[by_name["north"]] == 1001


def test_registered_names_stand_in_the_report() -> None:
    keys = {1000: ("north", b"n"), 1001: ("south", b"s"), 1002: ("", b"x")}
    grid = Registered(matrix_app(), keys)
    trace = run(FedAvg(identity="registered"), grid)
    assert trace.weights == [MEAN_OF_ALL]
    names = {row["client"] for row in trace.reports[0].train.rows}
    assert {"north", "south"} < names
    assert len(names) == 3 and "" not in names


def test_node_without_a_registered_key() -> None:
    grid = Registered(matrix_app(), {1000: ("north", b"")})
    with pytest.raises(RunError, match="node 1000 has no registered key: start the SuperL"):
        members(grid, "registered", None, 1.0)


# The hello


def hello_app(**facts: Any) -> ClientApp:
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Any) -> Message:
        record = ConfigRecord({"source": source_hash(), **facts})
        return Message(RecordDict({"hello": record}), reply_to=message)

    return app


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"partition-id": 0},
        {"partition-id": 2, "num-partitions": 2},
        {"partition-id": -1, "num-partitions": 2},
        {"partition-id": "0", "num-partitions": "2"},
    ],
)
def test_node_that_names_no_partition(facts: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="node 1000 names no partition: start it with"):
        members(LocalGrid(hello_app(**facts), 1), "partition", None, 1.0)


def test_nodes_that_disagree_on_the_number_of_partitions() -> None:
    app = placed_app({1000: (0, 2), 1001: (1, 3)})
    with pytest.raises(RunError, match="node 1001 says 3 partitions, others say 2"):
        members(LocalGrid(app, 2), "partition", None, 1.0)


def test_node_that_runs_other_code() -> None:
    app = hello_app(**{"partition-id": 0, "num-partitions": 1})
    members(LocalGrid(app, 1), "partition", None, 1.0, source_hash())
    with pytest.raises(RunError, match="node 1000 runs other fedsuite code") as caught:
        members(LocalGrid(app, 1), "partition", None, 1.0, "0" * 64)
    assert "\n" not in str(caught.value)
    assert source_hash()[:12] in str(caught.value)


def test_app_that_knows_no_hello() -> None:
    with pytest.raises(RunError, match=r"failed the hello .* or use identity='node'"):
        members(LocalGrid(ClientApp(), 1), "partition", None, 1.0)
