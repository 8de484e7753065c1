"""Which version of the slow arrays each client holds, and what is sent again."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as some

from fedsuite.messages.decomposition import SLOW
from fedsuite.messages.records import ARRAYS, EVALUATE, Reply, Request
from fedsuite.strategies import FilterDecomposition
from fedsuite.strategies.averaging.fedavg import FedAvg
from tests.helpers import bits
from tests.strategies.decomposition.factored import (
    CLIENTS,
    COEFFICIENTS,
    FAST,
    SLOW_NAMES,
    Recorder,
    Told,
    arrays_in,
    changes,
    federate,
    initial,
    make_app,
    no_evaluation,
    wrap,
)

NUM_SLOW = sum(initial()[name].size for name in SLOW_NAMES)
NUM_FAST = sum(initial()[name].size for name in FAST)


def downloads(grid: Recorder, num_rounds: int) -> list[list[int]]:
    """Return, per round, the partitions that were sent slow arrays."""
    found = []
    for server_round in range(1, num_rounds + 1):
        messages = grid.of_round(server_round)
        lacking = [m for m in messages if SLOW in arrays_in(m)]
        for message in lacking:
            assert list(arrays_in(message)[SLOW]) == SLOW_NAMES
        found.append([m.metadata.dst_node_id - 1000 for m in lacking])
    return found


def test_slow_arrays_go_to_those_who_lack_them() -> None:
    """After an upload all lack the new ones once; at the next upload all hold them."""
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=3), grid, 5)
    all_clients = list(range(CLIENTS))
    assert downloads(grid, 5) == [all_clients, all_clients, [], [], all_clients]
    assert not any(report.metrics["replies_rejected"] for report in trace.reports)


def simulate(sampled: Sequence[Sequence[int]], period: int) -> list[list[int]]:
    """Return who lacks the slow arrays in each round, by an account of its own."""
    version, held, lacking = 0, dict[int, int](), []
    for index, clients in enumerate(sampled):
        lacking.append([k for k in clients if held.get(k) != version])
        held |= dict.fromkeys(clients, version)
        version += index % period == 0
    return lacking


@settings(max_examples=12, deadline=None)
@given(
    seed=some.integers(0, 1000),
    period=some.integers(2, 4),
    per_round=some.integers(1, CLIENTS),
    mode=some.sampled_from(["discard", "freeze", "persist"]),
)
def test_each_client_starts_from_the_current_model(
    seed: int, period: int, per_round: int, mode: Any
) -> None:
    """Whoever is drawn: completed arrays equal the server's, and nothing is sent twice."""
    starts: list[tuple[int, int, dict[str, np.ndarray]]] = []

    def watch(client_id: int, request: Request, reply: Reply | None) -> None:
        if reply is None:
            starts.append((request.server_round, client_id, dict(request.arrays[ARRAYS])))

    inner = no_evaluation(clients_per_round=per_round, seed=seed)
    strategy = wrap(inner, coefficient_period=period, local_coefficients=mode)
    grid = Recorder(make_app(Told, watch=watch))
    trace = federate(strategy, grid, 6)
    server = [initial(), *trace.arrays]
    for server_round, _, arrays in starts:
        assert list(arrays) == list(initial())
        for name in FAST if mode == "persist" else arrays:
            np.testing.assert_array_equal(arrays[name], server[server_round - 1][name])
    sampled = [[k for r, k, _ in starts if r == i] for i in range(1, 7)]
    assert downloads(grid, 6) == simulate(sampled, period)
    slow_sent = sum(map(len, simulate(sampled, period)))
    counted = sum(report.metrics["true_parameters_down"] for report in trace.reports)
    assert counted == 6 * per_round * NUM_FAST + slow_sent * NUM_SLOW


def lose(client: int, in_round: int) -> Callable[[int, list[Message]], list[Message]]:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        if server_round != in_round:
            return replies
        return [m for m in replies if m.metadata.src_node_id != 1000 + client]

    return tamper


def test_a_reply_that_is_lost_leaves_the_server_sure_of_nothing() -> None:
    """Client 2 stored what it got, but nobody heard: it is sent the arrays again."""
    grid = Recorder(make_app(), tamper=lose(2, in_round=2))
    federate(wrap(coefficient_period=5), grid, 4)
    assert downloads(grid, 4) == [[0, 1, 2, 3], [0, 1, 2, 3], [2], []]


def test_a_client_that_does_not_say_that_it_stored_holds_nothing() -> None:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        if server_round == 2:
            del replies[0].content["metrics"]["stored-state"]
        return replies

    grid = Recorder(make_app(), tamper=tamper)
    federate(wrap(coefficient_period=5), grid, 3)
    assert downloads(grid, 3)[2] == [0]


def test_a_client_killed_in_the_round_of_an_upload() -> None:
    grid = Recorder(make_app(), tamper=lose(1, in_round=1))
    trace = federate(wrap(coefficient_period=3), grid, 3)
    assert downloads(grid, 3) == [[0, 1, 2, 3], [0, 1, 2, 3], []]
    assert [report.metrics["replies_rejected"] for report in trace.reports] == [1, 0, 0]


def test_an_upload_below_the_quorum_leaves_versions_as_they_are() -> None:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        return replies[:1] if server_round == 3 else replies

    grid = Recorder(make_app(), tamper=tamper)
    strategy = wrap(no_evaluation(quorum=3), coefficient_period=2)
    trace = federate(strategy, grid, 5)
    assert changes(trace, COEFFICIENTS) == [1, 5]
    assert downloads(grid, 5) == [[0, 1, 2, 3], [0, 1, 2, 3], [], [], []]


def test_a_bad_reply_counts_for_nothing() -> None:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        if server_round == 2:
            # A whole model, where the fast set was announced.
            replies[0].content[ARRAYS] = grid.replies_of(1)[0].content[ARRAYS]
        return replies

    grid = Recorder(make_app(), tamper=tamper)
    trace = federate(wrap(coefficient_period=4), grid, 3)
    (rejection,) = trace.reports[1].train.rejections
    assert "array names differ" in rejection.reason
    assert downloads(grid, 3)[2] == [0]


def test_arrays_changed_by_a_wrapper_outside_are_a_new_version() -> None:
    """Noise on the whole model, say, makes the held coefficients stale."""

    class Shifted(FilterDecomposition):
        def after_training(self, arrays: Any) -> Any:
            arrays = super().after_training(arrays)
            if self.strategy.server_round == 2:
                changed = type(arrays)(dict(arrays))
                moved = arrays[COEFFICIENTS].numpy() + 1
                changed[COEFFICIENTS] = type(arrays)([moved])["0"]
                arrays = changed
            return arrays

    grid = Recorder(make_app())
    federate(wrap(layer_class=Shifted, coefficient_period=9), grid, 4)
    assert [len(clients) for clients in downloads(grid, 4)] == [4, 4, 4, 0]


def test_evaluation_sends_the_whole_model_and_changes_no_standing() -> None:
    costs = []
    for every in (1, 3):
        inner = FedAvg(min_available_nodes=1, evaluate_every=every, clients_per_round=2)
        grid = Recorder(make_app())
        trace = federate(wrap(inner, coefficient_period=3), grid, 6)
        costs.append([r.metrics["true_bytes_down"] for r in trace.reports])
        for message in grid.of_round(3, EVALUATE):
            (arrays,) = arrays_in(message).values()
            assert bits(arrays) == bits(trace.arrays[2])
        assert len(grid.of_round(3, EVALUATE)) == CLIENTS
        assert trace.reports[2].metrics["evaluate_loss"] > 0
    assert costs[0] == costs[1]


def test_a_checkpoint_right_after_an_upload_knows_of_the_new_version() -> None:
    """Whether or not the round is evaluated: resumed, it sends the new arrays to all."""
    strategy = wrap(coefficient_period=3)
    trace = federate(strategy, Recorder(make_app()), 1)
    resumed = wrap(coefficient_period=3)
    resumed.layer.restore(strategy.layer.state())
    resumed.client_versions = dict(strategy.client_versions)
    grid = Recorder(make_app())
    federate(resumed, grid, 1, trace.arrays[0])
    assert downloads(grid, 1) == [[0, 1, 2, 3]]
