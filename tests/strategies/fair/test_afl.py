"""AFL: golden rounds, the projection, absent and new clients, its extremes."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.strategies.fair.afl import AFL, ascend, project_to_simplex
from tests.helpers import TamperingGrid, bits, run
from tests.strategies.fair.fair_rounds import (
    MODELS,
    PLAIN_MEAN,
    facts,
    fair_round,
    final,
    plain_mean_run,
    quadratic_run,
    scripted_app,
    shares,
    start_record,
    three,
)


def lambdas(strategy: AFL) -> list[float]:
    arrays, _ = strategy.state()
    return arrays["lambda"].tolist()


def test_golden_round() -> None:
    """1/3 + 0.1 (0.5, 2, 1), less its mean excess 0.35 / 3; all stay positive."""
    strategy = AFL(afl_step=0.1, **three())
    trace = fair_round(strategy)
    np.testing.assert_allclose(lambdas(strategy), [4 / 15, 5 / 12, 19 / 60], rtol=1e-9)
    np.testing.assert_allclose(final(trace), [0.043333, 0.061667], atol=5e-7)
    assert shares(trace) == pytest.approx([4 / 15, 5 / 12, 19 / 60])


def test_golden_round_at_the_edge() -> None:
    strategy = AFL.of_paper(afl_step=0.7, **three())
    fair_round(strategy)
    np.testing.assert_allclose(lambdas(strategy), [0, 0.85, 0.15], atol=1e-12)


def test_step_0_is_the_plain_mean_bit_for_bit() -> None:
    fair = quadratic_run(AFL(afl_step=0.0, **three()))
    assert [bits(a) for a in fair.arrays] == [bits(a) for a in plain_mean_run().arrays]
    assert fair.weights != quadratic_run(AFL(afl_step=0.01, **three())).weights
    np.testing.assert_allclose(final(fair_round(AFL(afl_step=0, **three()))), PLAIN_MEAN)


@pytest.mark.parametrize("step", [1e3, 1e300])
def test_huge_step_is_the_worst_client(step: float) -> None:
    bounded = fair_round(AFL(afl_step=step, **three()))
    assert shares(bounded) == pytest.approx([1 / 6, 2 / 3, 1 / 6])
    trace = fair_round(AFL.of_paper(afl_step=step, **three()))
    assert shares(trace) == [0.0, 1.0, 0.0]
    np.testing.assert_allclose(final(trace), MODELS[1])


def test_claims_do_not_add_up_over_rounds() -> None:
    """Nobody's lambda is above two thirds, which is twice its share of three."""
    strategy = AFL(afl_step=0.3, **three())
    fair_round(strategy, num_rounds=4)
    assert max(lambdas(strategy)) == pytest.approx(2 / 3)


def test_weights_add_up_over_rounds() -> None:
    """Two rounds at 0.05 and the same losses are one at 0.1."""
    strategy = AFL(afl_step=0.05, **three())
    fair_round(strategy, num_rounds=2)
    np.testing.assert_allclose(lambdas(strategy), [4 / 15, 5 / 12, 19 / 60], rtol=1e-9)


def test_absent_clients_keep_their_weight() -> None:
    """Four clients at 1/4; 0 and 1 share 1/2: 1/2 (1/2 -+ 0.1 (1.5 - 0.5) / 2)."""
    strategy = AFL(afl_step=0.1, **three(num_clients=4))

    def script(client: int, server_round: int):
        if client > 1:
            raise RuntimeError("away")
        return MODELS[client], facts(client, (0.5, 1.5)[client], 10)

    trace = run(strategy, TamperingGrid(scripted_app(script), 4), 1, start_record((0, 0)))
    np.testing.assert_allclose(lambdas(strategy), [0.225, 0.275, 0.25, 0.25])
    assert shares(trace) == pytest.approx([0.45, 0.55])
    np.testing.assert_allclose(final(trace), [0.45 * 0.2 - 0.055, 0.165], atol=1e-7)


def test_clients_without_weight_count_alike() -> None:
    """All three lost their weight to a fourth, who is away: the plain mean, no division."""
    strategy = AFL(**three(num_clients=4))
    clients = {"clients": np.arange(4, dtype=np.uint64)}
    strategy.restore({**clients, "lambda": np.array([0.0, 0.0, 0.0, 1.0])}, {})

    def script(client: int, server_round: int):
        if client == 3:
            raise RuntimeError("away")
        return MODELS[client], facts(client, 1.0, 10)

    trace = run(strategy, TamperingGrid(scripted_app(script), 4), 1, start_record((0, 0)))
    np.testing.assert_allclose(final(trace), PLAIN_MEAN, atol=1e-8)
    assert lambdas(strategy) == [0.0, 0.0, 0.0, 1.0]


def test_new_clients_get_an_equal_share() -> None:
    """From (0.2, 0.8) to four clients: the new ones have 1/4 each, the old ones halves."""
    strategy = AFL(afl_step=0.0, **three(num_clients=4))
    clients = {"clients": np.arange(2, dtype=np.uint64)}
    strategy.restore({**clients, "lambda": np.array([0.2, 0.8])}, {})
    fair_round(strategy, models=[*MODELS, (0, 0)], losses=[1] * 4, examples=[1] * 4)
    np.testing.assert_allclose(lambdas(strategy), [0.1, 0.4, 0.25, 0.25])


def test_large_node_ids_survive_the_state() -> None:
    strategy = AFL(**three())
    huge = [2**63 + 5, 2**64 - 1]
    strategy.restore(
        {"clients": np.array(huge, dtype=np.uint64), "lambda": np.array([0.25, 0.75])}, {}
    )
    arrays, scalars = strategy.state()
    assert arrays["clients"].tolist() == huge and scalars == {}
    assert arrays["lambda"].tolist() == [0.25, 0.75]


@pytest.mark.parametrize("losses", [(0, 0, 0), (1e308, 1, 0), (1e308,) * 3, (3, 3, 3)])
def test_hostile_losses(losses: tuple[float, ...]) -> None:
    strategy = AFL(afl_step=0.5, **three())
    trace = fair_round(strategy, losses=losses, num_rounds=3)
    assert np.isfinite(final(trace)).all()
    assert sum(lambdas(strategy)) == pytest.approx(1.0)
    if len(set(losses)) == 1:
        np.testing.assert_allclose(final(trace), PLAIN_MEAN, atol=1e-8)


def test_a_round_below_the_quorum_leaves_lambda() -> None:
    strategy = AFL(**three(quorum=3))
    fair_round(strategy, losses=(1.0, -1.0, 1.0))
    assert lambdas(strategy) == []


entries = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8).map(np.array)


@given(entries)
def test_projection_is_the_nearest_point_of_the_simplex(vector: np.ndarray) -> None:
    point = project_to_simplex(vector)
    assert (point >= 0).all() and point.sum() == pytest.approx(1.0)
    # Optimality: the vector lies beyond the point in no direction of the simplex.
    reach = (vector - point) @ (np.eye(len(vector)) - point).T
    assert (reach <= 1e-6 * max(1.0, np.abs(vector).max())).all()


def test_projection_by_hand() -> None:
    for vector, expected in (
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([2.0, 0.0], [1.0, 0.0]),
        ([0.9, 0.7, -5.0], [0.6, 0.4, 0.0]),
        ([1e300, 1e300], [0.5, 0.5]),
    ):
        np.testing.assert_allclose(project_to_simplex(np.array(vector)), expected)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6)), min_size=1, max_size=6),
    st.floats(0, 10),
)
def test_ascent_keeps_the_sum_and_favours_the_worse(
    drawn: Sequence[tuple[float, float]], step: float
) -> None:
    weights, losses = map(np.array, zip(*drawn, strict=True))
    new = ascend(weights, losses, step)
    assert (new >= 0).all()
    assert new.sum() == pytest.approx(weights.sum(), abs=1e-12)
    worst = losses.argmax()
    assert new[worst] >= weights[worst] - 1e-9


@pytest.mark.parametrize("step", [-0.1, float("nan"), float("inf")])
def test_bad_step(step: float) -> None:
    with pytest.raises(ValueError, match=r"afl_step = .*: expected"):
        AFL(afl_step=step)
