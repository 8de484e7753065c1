"""Fast and slow arrays: who gets what, and what clients do with slow ones in between."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.messages.records import ARRAYS, Reply, Request
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies import FilterDecomposition
from tests.helpers import Trace, bits
from tests.strategies.decomposition.factored import (
    ATOMS,
    CLIENTS,
    COEFFICIENTS,
    FAST,
    GROUPS,
    SLOW_NAMES,
    Recorder,
    arrays_in,
    average_of_products,
    changes,
    federate,
    initial,
    make_app,
    no_evaluation,
    tiny_model,
    wrap,
)

# ------------------------------------------------------------------------------- schedule


def test_coefficients_change_after_each_fifth_round_from_the_first() -> None:
    """Specification's test 9: P = 5, 11 rounds; t = 0, 5, 10 are rounds 1, 6, 11."""
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=5), grid, 11)
    for name in SLOW_NAMES:
        assert changes(trace, name) == [1, 6, 11]
    for name in FAST:
        assert changes(trace, name) == list(range(1, 12))
    for server_round in range(1, 12):
        for message in grid.of_round(server_round):
            assert list(arrays_in(message)[ARRAYS]) == FAST
        expected = set(initial()) if server_round in (1, 6, 11) else set(FAST)
        for reply in grid.replies_of(server_round):
            assert {n: set(a) for n, a in arrays_in(reply).items()} == {ARRAYS: expected}


def test_a_period_of_ten_has_two_uploads_in_twenty_rounds() -> None:
    layer = FilterDecomposition(groups=GROUPS, coefficient_period=10)
    assert [r for r in range(1, 21) if layer.is_sync(r)] == [1, 11]


def test_without_upload_the_filters_are_the_mean_of_products() -> None:
    """The coefficients are the same for all, so there are no cross terms."""
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=2), grid, 2)
    replies = [arrays_in(reply)[ARRAYS] for reply in grid.replies_of(2)]
    kept = trace.arrays[0][COEFFICIENTS]
    expected = average_of_products(
        np.array([kept] * CLIENTS),
        np.array([reply[ATOMS] for reply in replies]),
        np.array([8, 9, 10, 11]) / 38,
    )
    found = np.tensordot(trace.arrays[1][COEFFICIENTS], trace.arrays[1][ATOMS], axes=1)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize(
    ("fast_set", "names"),
    [
        ("atoms", [ATOMS]),
        ("atoms+head", FAST),
        ("atoms+head+other", [n for n in initial() if n != COEFFICIENTS]),
    ],
)
def test_fast_sets(fast_set: Any, names: list[str]) -> None:
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=3, fast_set=fast_set), grid, 3)
    assert set(arrays_in(grid.replies_of(2)[0])[ARRAYS]) == set(names)
    assert [name for name in initial() if changes(trace, name) == [1, 2, 3]] == [
        name for name in initial() if name in names
    ]


def test_period_1_is_the_plain_strategy_bit_for_bit() -> None:
    plain = federate(no_evaluation(), Recorder(make_app(wrapped=False)), 3)
    wrapped = federate(wrap(freeze_atoms=False), Recorder(make_app(wrapped=False)), 3)
    assert bits(plain.arrays[-1]) == bits(wrapped.arrays[-1])


def test_all_in_the_fast_set_but_coefficients_that_nobody_trains() -> None:
    """With what is slow frozen on both sides, a period makes no difference."""

    def frozen(groups: ParameterGroups) -> Callable[[], Any]:
        def build() -> Any:
            model = tiny_model()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name not in groups.coefficients)
            return model

        return build

    options = {"model": frozen(GROUPS)}
    every = federate(no_evaluation(), Recorder(make_app(wrapped=False, **options)), 3)
    strategy = wrap(coefficient_period=3, fast_set="atoms+head+other")
    third = federate(strategy, Recorder(make_app(**options)), 3)
    assert bits(every.arrays[-1]) == bits(third.arrays[-1])


# --------------------------------------------------------------------- local coefficients


def starts_and_gradients(mode: Any, num_rounds: int) -> tuple[Trace, Any, Any, Recorder]:
    starts: dict[int, dict[str, np.ndarray]] = {}
    ends: dict[int, dict[str, np.ndarray]] = {}
    gradients: dict[int, set[str]] = {}

    class Spy(FedAvgClient):
        def before_step(self, model: Any) -> None:
            named = model.named_parameters()
            self.seen = {n for n, p in named if p.grad is not None}

        def on_train(self, request: Request) -> Reply:
            reply = super().on_train(request)
            if self.client_id == 0:
                starts[request.server_round] = dict(request.arrays[ARRAYS])
                ends[request.server_round] = dict(reply.arrays[ARRAYS])
                gradients[request.server_round] = self.seen
            return reply

    grid = Recorder(make_app(Spy, reuse=True))
    strategy = wrap(coefficient_period=4, local_coefficients=mode)
    trace = federate(strategy, grid, num_rounds)
    return trace, (starts, ends), gradients, grid


def test_discard_starts_from_the_received_coefficients() -> None:
    trace, (starts, ends), gradients, _ = starts_and_gradients("discard", 5)
    for server_round in (2, 3, 4, 5):
        np.testing.assert_array_equal(
            starts[server_round][COEFFICIENTS], trace.arrays[0][COEFFICIENTS]
        )
        assert gradients[server_round] == set(initial())
        assert not np.array_equal(
            ends[server_round][COEFFICIENTS], starts[server_round][COEFFICIENTS]
        )


def test_freeze_trains_the_fast_set_alone_between_uploads() -> None:
    _, (starts, ends), gradients, _ = starts_and_gradients("freeze", 5)
    assert gradients[1] == gradients[5] == set(initial())
    for server_round in (2, 3, 4):
        assert gradients[server_round] == set(FAST)
        for name in SLOW_NAMES:
            np.testing.assert_array_equal(
                ends[server_round][name], starts[server_round][name]
            )
    assert not np.array_equal(ends[5][COEFFICIENTS], starts[5][COEFFICIENTS])


def test_persist_goes_on_from_the_clients_own_up_to_the_upload() -> None:
    trace, (starts, ends), _, grid = starts_and_gradients("persist", 6)
    for name in SLOW_NAMES:
        np.testing.assert_array_equal(starts[2][name], trace.arrays[0][name])
        for server_round in (3, 4, 5):
            np.testing.assert_array_equal(
                starts[server_round][name], ends[server_round - 1][name]
            )
        np.testing.assert_array_equal(starts[6][name], trace.arrays[4][name])
    uploaded = arrays_in(grid.replies_of(5)[0])[ARRAYS]
    assert bits(uploaded) == bits(ends[5])


def test_frozen_parameters_are_trained_again_afterwards() -> None:
    """All clients share one model: what one client froze must not stay frozen."""
    trace, *_ = starts_and_gradients("freeze", 5)
    assert changes(trace, COEFFICIENTS) == [1, 5]


def test_freeze_atoms_keeps_them_at_their_start() -> None:
    """Control C2."""
    trace = federate(wrap(freeze_atoms=True), Recorder(make_app()), 3)
    assert changes(trace, ATOMS) == []
    assert changes(trace, COEFFICIENTS) == [1, 2, 3]
