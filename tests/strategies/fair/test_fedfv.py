"""FedFV: golden rounds, its history, its extremes, and updates that conflict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.vectors import norm
from fedsuite.strategies.fair.fedfv import (
    FedFV,
    mitigate_external_conflicts,
    mitigate_internal_conflicts,
    project_away,
    rescale,
    untouched_clients,
)
from tests.helpers import TamperingGrid, bits, run
from tests.strategies.fair.fair_rounds import (
    LOSSES,
    MODELS,
    PLAIN_MEAN,
    facts,
    fair_round,
    final,
    plain_mean_run,
    quadratic_run,
    scripted_app,
    start_record,
    three,
)


@pytest.mark.parametrize(
    ("alpha", "model"),
    [
        (0.0, (0.069349, 0.027319)),
        (0.1, (0.021240, 0.071445)),
        (0.5, (0.055709, 0.049519)),
        (1.0, PLAIN_MEAN),
    ],
)
def test_golden_rounds(alpha: float, model: tuple[float, float]) -> None:
    trace = fair_round(FedFV(fedfv_alpha=alpha, fedfv_tau=0, **three()))
    np.testing.assert_allclose(final(trace), model, atol=5e-7)


def test_internal_conflicts_by_hand() -> None:
    """g = (1, 0), (-1, 1): each is projected onto the other's normal plane.

    <g0, g1> = -1, ||g1||^2 = 2: g0 becomes (1, 0) + (-1, 1) / 2 = (1/2, 1/2); g1 becomes
    (-1, 1) + (1, 0) = (0, 1). Half of the sum is (1/4, 3/4).
    """
    updates = np.array([[1.0, 0.0], [-1.0, 1.0]])
    mean = mitigate_internal_conflicts(updates, np.array([1.0, 2.0]), 0.0)
    np.testing.assert_array_equal(mean, [0.25, 0.75])
    # The worst half, client 1, stays: ((1/2, 1/2) + (-1, 1)) / 2.
    mean = mitigate_internal_conflicts(updates, np.array([1.0, 2.0]), 0.5)
    np.testing.assert_array_equal(mean, [-0.25, 0.75])


@pytest.mark.parametrize(
    ("losses", "expected"), [([0.0, 1.0, 2.0], (0.2, -0.1)), ([0.0, 2.0, 1.0], (0.2, 0.2))]
)
def test_originals_are_projected_against_in_order_of_losses(
    losses: list[float], expected: tuple[float, float]
) -> None:
    """g0 = (1, 0), g1 = (-1, 1), g2 = (-1, -2); alpha = 0.5 leaves g1 and g2 untouched.

    First against g1, (1/2, 1/2), then g2: <.,.> = -3/2, ||g2||^2 = 5, and
    (1/2, 1/2) + 3/10 (-1, -2) = (0.2, -0.1). The other order: (1, 0) + (-1, -2) / 5 =
    (0.8, -0.4), then + 1.2 / 2 (-1, 1) = (0.2, 0.2).
    """
    updates = np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -2.0]])
    mean = mitigate_internal_conflicts(updates, np.array(losses), 0.5)
    np.testing.assert_allclose(3 * mean - updates[1] - updates[2], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("count", "alpha", "expected"),
    [
        (3, 0.0, set()),
        (3, 0.1, {1}),
        (3, 0.5, {1, 2}),
        (3, 1.0, {0, 1, 2}),
        (1, 0.5, {0}),
        # (11 - 1)(1 - 0.7) is 3.0000000000000004 in floating point, and 3 in the paper.
        (11, 0.7, {3, 4, 5, 6, 7, 8, 9, 10}),
    ],
)
def test_untouched_share(count: int, alpha: float, expected: set[int]) -> None:
    losses = np.array(LOSSES) if count == 3 else np.arange(float(count))
    assert untouched_clients(losses, alpha)[1] == expected


def test_equal_losses_keep_client_order() -> None:
    order, untouched = untouched_clients(np.zeros(4), 0.5)
    assert order == [0, 1, 2, 3]
    assert untouched == {2, 3}
    many = untouched_clients(np.arange(100.0) % 2, 0)[0]
    assert many == [*range(0, 100, 2), *range(1, 100, 2)]


def round_with_an_absent_client(history: str, tau: int, num_rounds: int) -> FedFV:
    """Client 3 answers in round 1 alone, with g = (0, 0.1) and w = (0, 0) before."""

    def script(client: int, server_round: int):
        if server_round == 1:
            model, loss, count = ((0.0, -0.1), 1.0, 1.0 if client == 3 else 0.0)
        else:
            if client == 3:
                raise RuntimeError("away")
            model, loss, count = MODELS[client], LOSSES[client], 10.0
        return model, facts(client, loss, count)

    class Restarted(FedFV):
        """Starts each round from (0, 0), so that the golden numbers hold in round 2."""

        def combine(self, arrays, replies):
            self.latest = super().combine(arrays, replies)
            return {"w": np.zeros(2, dtype=np.float32)}

    strategy = Restarted(
        fedfv_alpha=0.1, fedfv_tau=tau, fedfv_history=history, **three(num_clients=4)
    )
    run(strategy, TamperingGrid(scripted_app(script), 4), num_rounds, start_record((0, 0)))
    return strategy


def test_golden_round_with_an_absent_client() -> None:
    """The internal mean points against (0, 0.1): all of its second entry goes."""
    strategy = round_with_an_absent_client("paper", tau=1, num_rounds=2)
    np.testing.assert_allclose(strategy.latest["w"], [0.074536, 0], atol=5e-7)


def test_an_absent_client_is_heard_for_tau_rounds() -> None:
    no_conflict = (0.021240, 0.071445)
    forgotten = round_with_an_absent_client("paper", tau=1, num_rounds=3)
    np.testing.assert_allclose(forgotten.latest["w"], no_conflict, atol=5e-7)
    heard = round_with_an_absent_client("paper", tau=2, num_rounds=3)
    np.testing.assert_allclose(heard.latest["w"], [0.074536, 0], atol=5e-7)
    # Round 2 is not yet past tau = 2.
    early = round_with_an_absent_client("paper", tau=2, num_rounds=2)
    np.testing.assert_allclose(early.latest["w"], no_conflict, atol=5e-7)


def test_golden_round_of_the_authors_code() -> None:
    """Its history holds this round's own clients; here that undoes the projection."""
    strategy = FedFV(fedfv_alpha=0.1, fedfv_tau=1, fedfv_history="code", **three())
    np.testing.assert_allclose(final(fair_round(strategy)), PLAIN_MEAN, atol=5e-7)


def test_external_conflicts_by_hand() -> None:
    """(1, 1) against (-2, 0) and (-2, 2): the second agrees with it and is left out."""
    past = [[np.array([-2.0, 0.0]), np.array([-2.0, 2.0])]]
    mean = mitigate_external_conflicts(np.array([1.0, 1.0]), past)
    np.testing.assert_array_equal(mean, [0.0, 1.0])


def test_alpha_1_tau_0_is_the_plain_mean() -> None:
    """Up to one unit in the last place of float32: w - mean g is not mean w_k in bits."""
    fair = quadratic_run(FedFV(fedfv_alpha=1.0, fedfv_tau=0, **three()))
    for mine, plain in zip(fair.arrays, plain_mean_run().arrays, strict=True):
        np.testing.assert_array_max_ulp(mine["weight"], plain["weight"], 1)


def test_updates_that_agree_are_averaged() -> None:
    models = ((0.2, 0.0), (0.0, 0.3), (0.1, 0.3))
    trace = fair_round(FedFV(fedfv_alpha=0, **three()), models=models, num_rounds=1)
    np.testing.assert_allclose(final(trace), [0.1, 0.2], rtol=1e-6)
    assert trace.reports[0].metrics["fair_cosine"] == pytest.approx(1.0)


def test_opposite_updates_cancel_and_the_model_stays() -> None:
    models = ((0.2, 0.0), (-0.2, 0.0), (0.0, 0.0))
    trace = fair_round(FedFV(fedfv_alpha=0, **three()), models=models, num_rounds=3)
    np.testing.assert_array_equal(final(trace), [0, 0])


@pytest.mark.parametrize("losses", [(0, 0, 0), (1e308, 1, 0), (1e308,) * 3])
def test_hostile_losses(losses: tuple[float, ...]) -> None:
    trace = fair_round(FedFV(fedfv_tau=2, **three()), losses=losses, num_rounds=4)
    assert np.isfinite(final(trace)).all()


def test_one_client_and_equal_updates() -> None:
    one = FedFV(**three(num_clients=1))
    trace = fair_round(one, models=[(0.2, -0.1)], losses=[1], examples=[3], num_rounds=2)
    np.testing.assert_allclose(final(trace), [0.2, -0.1], rtol=1e-6)
    same = fair_round(FedFV(**three()), models=[(0.2, -0.1)] * 3, num_rounds=3)
    np.testing.assert_allclose(final(same), [0.2, -0.1], rtol=1e-6)


def test_history_is_kept_for_tau_rounds_only() -> None:
    strategy = FedFV(fedfv_tau=2, **three(num_clients=3, clients_per_round=1, seed=1))
    fair_round(strategy, num_rounds=6)
    arrays, scalars = strategy.state()
    assert 0 < len(arrays) <= 2
    assert set(scalars["last-seen"]) <= {5, 6}
    none = FedFV(fedfv_tau=0, **three())
    fair_round(none)
    assert none.state()[0] == {}


def test_state_comes_back() -> None:
    strategy = FedFV(fedfv_tau=2, **three())
    fair_round(strategy, num_rounds=2)
    other = FedFV(fedfv_tau=2, **three())
    other.restore(*strategy.state())
    assert bits(other.state()[0]) == bits(strategy.state()[0])
    assert (
        other.state()[1]
        == strategy.state()[1]
        == {
            "clients": [0, 1, 2],
            "last-seen": [2, 2, 2],
        }
    )


def test_a_round_below_the_quorum_is_not_remembered() -> None:
    strategy = FedFV(**three(quorum=3))
    fair_round(strategy, losses=(1.0, -1.0, 1.0))
    assert strategy.state()[0] == {}


def test_what_rounding_leaves_of_zero_is_not_blown_up() -> None:
    """On one line every update is projected to nothing, up to its last bits."""
    updates = np.array([[0.1, 0.7, 0.3]]) * np.array([[1.0], [-2.3], [-0.9]])
    mean = mitigate_internal_conflicts(updates, np.array([1.0, 2.0, 3.0]), 0.0)
    np.testing.assert_array_equal(rescale(mean, norm(updates.mean(axis=0))), np.zeros(3))
    models = [tuple(-update) for update in updates]
    trace = fair_round(FedFV(fedfv_alpha=0, **three()), models=models, start=(0, 0, 0))
    np.testing.assert_array_equal(final(trace), np.zeros(3))


def test_update_too_small_to_have_a_length_is_passed_over() -> None:
    vector = np.array([1.0, 2.0])
    assert project_away(vector, np.array([-1e-200, 0.0])) is vector


number = st.floats(-10, 10, width=32)
vectors = st.lists(number, min_size=3, max_size=3).map(np.array)


@given(vectors, vectors)
def test_projection_ends_the_conflict(vector: np.ndarray, other: np.ndarray) -> None:
    projected = project_away(vector, other)
    assert projected @ other >= -1e-9 * max(1.0, np.abs(other).max())
    assert np.linalg.norm(projected) <= np.linalg.norm(vector) * (1 + 1e-12)


@given(st.lists(vectors, min_size=2, max_size=2), st.floats(0.1, 5))
def test_two_clients_never_lose_by_the_mean(drawn: list[np.ndarray], length: float) -> None:
    """For two clients the mean without conflicts goes against neither."""
    updates = np.stack(drawn)
    mean = rescale(mitigate_internal_conflicts(updates, np.array([1.0, 2.0]), 0.0), length)
    assert (updates @ mean >= -1e-6).all()
    assert norm(mean) == pytest.approx(length) or not mean.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fedfv_alpha": 1.5}, "fedfv_alpha = 1.5: expected"),
        ({"fedfv_tau": -1}, "fedfv_tau = -1: expected"),
        ({"fedfv_history": "all"}, "fedfv_history = 'all': expected"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedFV(**options)
