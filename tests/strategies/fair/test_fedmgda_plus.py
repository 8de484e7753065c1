"""FedMGDA+: golden rounds, the solver against closed forms, updates without a direction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.strategies.fair.fedmgda_plus import FedMGDAPlus, gram_matrix, min_norm_weights
from tests.strategies.fair.fair_rounds import PLAIN_MEAN, fair_round, final, shares, three


@pytest.mark.parametrize(
    ("epsilon", "weights", "model"),
    [
        (0.0, (1 / 3, 1 / 3, 1 / 3), (0.376995, 0.018085)),
        (0.1, (0.233333, 0.428092, 0.338574), (0.249374, 0.103294)),
        (1.0, (0.0, 0.5, 0.5), (0.065493, 0.027128)),
    ],
)
def test_golden_rounds(
    epsilon: float, weights: tuple[float, ...], model: tuple[float, float]
) -> None:
    trace = fair_round(FedMGDAPlus(fedmgda_epsilon=epsilon, **three()))
    np.testing.assert_allclose(shares(trace), weights, atol=2e-6)
    np.testing.assert_allclose(final(trace), model, atol=2e-6)


def test_golden_norm() -> None:
    trace = fair_round(FedMGDAPlus(fedmgda_epsilon=1.0, **three()))
    length = trace.reports[0].metrics["common_direction_norm"]
    assert length**2 == pytest.approx(0.005025, abs=5e-7)


def test_equal_lengths_and_epsilon_0_are_the_plain_mean() -> None:
    """All ||w - w_k|| = 0.5 and eta = 0.5: the mean of the models themselves."""
    models = ((0.3, 0.4), (-0.5, 0.0), (0.4, -0.3))
    strategy = FedMGDAPlus(fedmgda_epsilon=0.0, fedmgda_step=0.5, **three())
    np.testing.assert_allclose(
        final(fair_round(strategy, models=models)), np.mean(models, axis=0), atol=1e-7
    )
    assert not np.allclose(final(fair_round(FedMGDAPlus(**three()))), PLAIN_MEAN)


def test_lengths_of_updates_do_not_count() -> None:
    models = ((0.2, 0.0), (-1000.0, 3000.0), (1e-6, -2e-6))
    one = final(fair_round(FedMGDAPlus(**three())))
    np.testing.assert_allclose(
        one, final(fair_round(FedMGDAPlus(**three()), models=models)), atol=1e-5
    )


def test_step_and_its_decay() -> None:
    """One client: a unit step of 2, then of 1, then of 1/2, in its direction."""
    strategy = FedMGDAPlus(fedmgda_step=2.0, fedmgda_step_decay=0.5, **three(num_clients=1))

    class Relative(FedMGDAPlus):
        def combine(self, arrays, replies):
            new = super().combine(arrays, replies)
            self.steps = [*getattr(self, "steps", []), float(new["w"][0] - arrays["w"][0])]
            return {"w": np.zeros(2, dtype=np.float32)}

    strategy.__class__ = Relative
    fair_round(strategy, models=[(7.0, 0.0)], losses=[1], examples=[1], num_rounds=3)
    assert strategy.steps == [2.0, 1.0, 0.5]


@given(st.floats(-0.999, 1), st.floats(0.05, 20), st.floats(0, 1))
def test_two_clients_against_the_closed_form(
    cosine: float, ratio: float, epsilon: float
) -> None:
    """min over l of l^2 a - 2 l (1 - l) c + ..: l = (b - c) / (a + b - 2 c), clipped."""
    a, b = 1.0, ratio
    c = cosine * np.sqrt(a * b)
    spread = a + b - 2 * c
    if spread < 1e-3:
        return
    low, high = max(0.5 - epsilon, 0.0), min(0.5 + epsilon, 1.0)
    expected = np.clip((b - c) / spread, low, high)
    weights = min_norm_weights(np.array([[a, c], [c, b]]), epsilon)
    np.testing.assert_allclose(weights, [expected, 1 - expected], atol=1e-5)


directions = st.integers(1, 6).flatmap(
    lambda m: st.lists(
        st.lists(st.floats(-1, 1), min_size=4, max_size=4), min_size=m, max_size=m
    )
)


@given(directions, st.floats(0, 1))
def test_solution_is_feasible_and_no_exchange_makes_it_shorter(
    drawn: list[list[float]], epsilon: float
) -> None:
    """At the optimum moving weight from i to j cannot help where the bounds allow it."""
    rows = np.array(drawn)
    gram = gram_matrix(rows)
    weights = min_norm_weights(gram, epsilon)
    count = len(rows)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= -1e-12).all()
    assert (np.abs(weights - 1 / count) <= epsilon + 1e-9).all()
    best = weights @ gram @ weights
    assert best <= gram.sum() / count**2 + 1e-9
    slope = gram @ weights
    gives = weights > max(1 / count - epsilon, 0) + 1e-3
    takes = weights < min(1 / count + epsilon, 1) - 1e-3
    for i in np.flatnonzero(gives):
        for j in np.flatnonzero(takes):
            assert slope[i] <= slope[j] + 1e-4


def test_gram_matrix() -> None:
    rows = np.array([[1.0, 2.0], [3.0, -1.0], [0.0, 2.0]])
    np.testing.assert_array_equal(gram_matrix(rows), rows @ rows.T)


def test_equal_updates_are_one_direction() -> None:
    """The programme has no single answer then; any mixture is the same step."""
    trace = fair_round(FedMGDAPlus(fedmgda_epsilon=1.0, **three()), models=[(0.3, 0.4)] * 3)
    np.testing.assert_allclose(final(trace), [0.6, 0.8], atol=1e-6)


def test_opposite_updates_stop_the_model() -> None:
    models = ((0.3, 0.0), (-0.1, 0.0), (-0.2, 0.0))
    trace = fair_round(FedMGDAPlus(fedmgda_epsilon=1.0, **three()), models=models)
    np.testing.assert_allclose(final(trace), [0, 0], atol=1e-6)


def test_client_that_did_not_move_is_left_out() -> None:
    models = ((0.0, 0.0), (0.0, 0.3), (0.4, 0.0))
    trace = fair_round(FedMGDAPlus(fedmgda_epsilon=1.0, **three()), models=models)
    assert shares(trace) == pytest.approx([0.0, 0.5, 0.5], abs=1e-6)
    np.testing.assert_allclose(final(trace), [0.5, 0.5], atol=1e-6)
    still = fair_round(FedMGDAPlus(**three()), models=[(0.0, 0.0)] * 3, start=(0, 0))
    np.testing.assert_array_equal(final(still), [0, 0])


def test_one_client_and_a_missing_one() -> None:
    one = FedMGDAPlus(**three(num_clients=1))
    trace = fair_round(one, models=[(0.3, 0.4)], losses=[1], examples=[1])
    np.testing.assert_allclose(final(trace), [0.6, 0.8], atol=1e-6)
    missing = fair_round(
        FedMGDAPlus(fedmgda_epsilon=0.0, **three()),
        models=((0.2, 0.0), (float("nan"), 0.0), (0.0, 0.1)),
    )
    np.testing.assert_allclose(final(missing), [0.5, 0.5], atol=1e-6)


def test_many_clients() -> None:
    """As many orthogonal directions as clients: equal weights are the shortest."""
    weights = min_norm_weights(np.eye(100), 1.0)
    np.testing.assert_allclose(weights, np.full(100, 0.01), atol=1e-6)
    skewed = min_norm_weights(np.diag([1.0, 2.0, 4.0]), 1.0)
    np.testing.assert_allclose(skewed, np.array([4, 2, 1]) / 7, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fedmgda_epsilon": -0.1}, "fedmgda_epsilon = -0.1: expected"),
        ({"fedmgda_step": 0.0}, "fedmgda_step = 0.0: expected"),
        ({"fedmgda_step_decay": 1.5}, "fedmgda_step_decay = 1.5: expected"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedMGDAPlus(**options)
