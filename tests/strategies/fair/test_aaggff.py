"""AAggFF: golden decisions of both settings, equal responses, clients that come and go."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.strategies.fair.aaggff import (
    AAggFF,
    device_decision,
    device_gradient,
    normal_responses,
    silo_gradient,
)
from tests.helpers import TamperingGrid, Trace, bits, run
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
    shares,
    start_record,
    three,
)

FIRST_TWO = {0: 0.5, 1: 1.5}
"""The golden case of the cross-device setting."""


def decision(strategy: AAggFF) -> np.ndarray:
    return strategy.state()[0]["decision"]


def test_golden_responses() -> None:
    """x = 3/7, 12/7, 6/7: Phi(-4/7), Phi(5/7), Phi(-1/7)."""
    np.testing.assert_allclose(
        normal_responses(np.array(LOSSES)), [0.283855, 0.762475, 0.443202], atol=5e-7
    )


def test_golden_round_cross_silo() -> None:
    strategy = AAggFF(aaggff_setting="cross-silo", **three())
    trace = fair_round(strategy)
    gradient = strategy.state()[0]["gradients"]
    np.testing.assert_allclose(gradient, [-0.081182, -0.218067, -0.126755], atol=5e-7)
    expected = np.array([0.318156, 0.352315, 0.329529])
    np.testing.assert_allclose(decision(strategy), expected, atol=2e-6)
    np.testing.assert_allclose(shares(trace), expected, atol=2e-6)
    np.testing.assert_allclose(final(trace), expected @ np.array(MODELS), atol=2e-6)


def test_first_silo_round_against_its_closed_form() -> None:
    """While no p is at 0: (a I + b g g') p = b g <g, p_1> - g + nu 1, with sum p = 1."""
    strategy = AAggFF(aaggff_setting="cross-silo", **three())
    fair_round(strategy)
    g = silo_gradient(np.full(3, 1 / 3), normal_responses(np.array(LOSSES)))
    matrix = 4 * np.eye(3) + 0.75 * np.outer(g, g)
    linear = 0.75 * g * (g.sum() / 3) - g
    inverse = np.linalg.inv(matrix)
    nu = (1 - (inverse @ linear).sum()) / inverse.sum()
    expected = inverse @ (linear + nu)
    np.testing.assert_allclose(decision(strategy), expected, atol=1e-6)


def device_round(
    answers: dict[int, float] = FIRST_TWO, **options: object
) -> tuple[AAggFF, Trace]:
    """Return a round of four clients, of which some answer with these losses."""
    strategy = AAggFF(**three(num_clients=4, **options))

    def script(client: int, server_round: int):
        if client not in answers:
            raise RuntimeError("away")
        model = MODELS[list(answers).index(client)]
        return model, facts(client, answers[client], 10)

    grid = TamperingGrid(scripted_app(script), 4)
    return strategy, run(strategy, grid, 1, start_record((0, 0)))


def test_golden_round_cross_device() -> None:
    strategy, trace = device_round()
    expected = [0.237413, 0.262912, 0.249837, 0.249837]
    np.testing.assert_allclose(decision(strategy), expected, atol=1e-6)
    np.testing.assert_allclose(shares(trace), [0.474518, 0.525482], atol=1e-6)
    model = 0.474518 * np.array(MODELS[0]) + 0.525482 * np.array(MODELS[1])
    np.testing.assert_allclose(final(trace), model, atol=1e-6)


def test_who_answers_does_not_matter() -> None:
    """The golden round with clients 1 and 3."""
    strategy, trace = device_round({1: 0.5, 3: 1.5})
    expected = [0.249837, 0.237413, 0.249837, 0.262912]
    np.testing.assert_allclose(decision(strategy), expected, atol=1e-6)
    np.testing.assert_allclose(shares(trace), [0.474518, 0.525482], atol=1e-6)


def test_golden_estimate() -> None:
    """r = 0.5 (Phi(-1/2), Phi(1/2)), mean 1/4, D = 5/4; equal p make the second term 0.

    -g D is the estimate: 1/4 +- 2 (0.345731 - 0.25) for 0 and 1, else 1/4.
    """
    responses = normal_responses(np.array([0.5, 1.5]))
    np.testing.assert_allclose(0.5 * responses, [0.154269, 0.345731], atol=5e-7)
    gradient = device_gradient(np.full(4, 0.25), responses, [0, 1])
    np.testing.assert_allclose(
        -1.25 * gradient, [0.058538, 0.441462, 0.25, 0.25], atol=1e-6
    )


def test_gradient_at_another_decision_by_hand() -> None:
    """p = (0.5, 0.3, 0.1, 0.1): the shift 0.25 <p, r' - 1/4> / D^2 comes to all alike."""
    responses = normal_responses(np.array([0.5, 1.5]))
    even = device_gradient(np.full(4, 0.25), responses, [0, 1])
    uneven = device_gradient(np.array([0.5, 0.3, 0.1, 0.1]), responses, [0, 1])
    away = 0.441462 - 0.25
    shift = 0.25 * (-0.5 + 0.3) * away / 1.25**2
    np.testing.assert_allclose(uneven - even, np.full(4, shift), atol=1e-6)


def test_steps_shrink_with_the_number_of_updates() -> None:
    """Sum of gradients (0, -1), M = 2, C = 1: log-odds sqrt(ln 2) / 3 / sqrt(t + 1)."""
    for updates in (1, 3, 8):
        p = device_decision(np.array([0.0, -1.0]), 1.0, updates)
        expected = math.sqrt(math.log(2)) / 3 / math.sqrt(updates + 1)
        assert math.log(p[1] / p[0]) == pytest.approx(expected)


@pytest.mark.parametrize("setting", ["cross-device", "cross-silo"])
@pytest.mark.parametrize("losses", [(0, 0, 0), (7, 7, 7), (1e308,) * 3])
def test_equal_losses_are_the_plain_mean(setting: str, losses: tuple[float, ...]) -> None:
    strategy = AAggFF(aaggff_setting=setting, **three())
    trace = fair_round(strategy, losses=losses, num_rounds=3)
    np.testing.assert_allclose(final(trace), PLAIN_MEAN, atol=1e-7)
    np.testing.assert_allclose(decision(strategy), np.full(3, 1 / 3), atol=1e-9)


def test_equal_losses_are_the_plain_mean_bit_for_bit() -> None:
    """On the real client, cross-device: values of one size give equal losses at W = 0."""
    app = {"values": [1.0, -1.0, 1.0], "counts": [1, 5, 2]}
    fair = quadratic_run(AAggFF(**three()), 1, **app)
    plain = plain_mean_run(1, **app)
    assert bits(fair.arrays[0]) == bits(plain.arrays[0])
    other = quadratic_run(AAggFF(**three()), 1, values=[1.0, -2.0, 1.0])
    assert bits(other.arrays[0]) != bits(
        plain_mean_run(1, values=[1.0, -2.0, 1.0]).arrays[0]
    )


@pytest.mark.parametrize("setting", ["cross-device", "cross-silo"])
@pytest.mark.parametrize("losses", [(1e308, 1, 0), (0, 0, 1e-300), (1e308, 1e308, 0)])
def test_hostile_losses(setting: str, losses: tuple[float, ...]) -> None:
    strategy = AAggFF(aaggff_setting=setting, **three())
    trace = fair_round(strategy, losses=losses, num_rounds=5)
    assert np.isfinite(final(trace)).all()
    p = decision(strategy)
    assert p.sum() == pytest.approx(1.0) and (p >= 0).all()
    assert p[np.argmax(losses)] >= p.max() - 1e-9


@pytest.mark.parametrize("setting", ["cross-device", "cross-silo"])
def test_one_client(setting: str) -> None:
    strategy = AAggFF(aaggff_setting=setting, **three(num_clients=1))
    trace = fair_round(
        strategy, models=[(0.2, 0.1)], losses=[3], examples=[1], num_rounds=2
    )
    np.testing.assert_allclose(final(trace), [0.2, 0.1])
    assert decision(strategy).tolist() == [1.0]


def test_silo_client_that_did_not_answer_counts_with_the_mean() -> None:
    strategy, _ = device_round(
        {0: 1.0, 1: 2.0, 3: 9.0}, aaggff_setting="cross-silo", max_share_ratio="off"
    )
    told = normal_responses(np.array([1.0, 2.0, 9.0]))
    assert abs(told.mean() - 0.5) > 0.01
    whole = silo_gradient(
        np.full(4, 0.25), np.array([told[0], told[1], told.mean(), told[2]])
    )
    np.testing.assert_allclose(strategy.state()[0]["gradients"], whole, atol=1e-12)


@pytest.mark.parametrize("setting", ["cross-device", "cross-silo"])
def test_new_clients_are_the_mean_of_the_known(setting: str) -> None:
    strategy = AAggFF(aaggff_setting=setting, **three(num_clients=4))
    old = {
        "clients": np.array([0, 1], dtype=np.uint64),
        "decision": np.array([0.2, 0.8]),
        "gradients": np.array([1.0, -3.0]),
    }
    if setting == "cross-silo":
        old |= {"offsets": np.array([0.5, 0.1]), "outer": np.diag([1.0, 2.0])}
    strategy.restore(old, {"updates": 5})
    strategy._admit([0, 1, 2, 3])
    arrays, scalars = strategy.state()
    assert scalars == {"updates": 5}
    np.testing.assert_allclose(arrays["decision"], [0.1, 0.4, 0.25, 0.25])
    np.testing.assert_allclose(arrays["gradients"], [1, -3, -1, -1])
    if setting == "cross-silo":
        np.testing.assert_allclose(arrays["offsets"], [0.5, 0.1, 0.3, 0.3])
        np.testing.assert_array_equal(arrays["outer"], np.diag([1, 2, 0, 0]))


@pytest.mark.parametrize("setting", ["cross-device", "cross-silo"])
def test_state_comes_back(setting: str) -> None:
    options = three(aaggff_setting=setting)
    whole, part, rest = AAggFF(**options), AAggFF(**options), AAggFF(**options)
    expected = fair_round(whole, num_rounds=4)
    fair_round(part, num_rounds=2)
    rest.restore(*part.state())
    found = fair_round(rest, num_rounds=2)
    assert bits(whole.state()[0]) == bits(rest.state()[0])
    assert whole.state()[1] == rest.state()[1] == {"updates": 4}
    assert bits(expected.arrays[-1]) == bits(found.arrays[-1])


def test_a_round_below_the_quorum_decides_nothing() -> None:
    strategy = AAggFF(**three(quorum=3))
    fair_round(strategy, losses=(1.0, -1.0, 1.0))
    assert strategy.state()[1] == {"updates": 0}


losses_lists = st.lists(st.floats(0, 1e6), min_size=1, max_size=6).map(np.array)


@given(losses_lists, st.integers(0, 5), st.integers(1, 50))
def test_decision_is_a_distribution_that_follows_the_losses(
    losses: np.ndarray, absent: int, updates: int
) -> None:
    responses = normal_responses(losses)
    assert (responses >= 0).all() and (responses <= 1).all()
    order = np.argsort(losses)
    assert (np.diff(responses[order]) >= 0).all()
    count = len(losses) + absent
    gradient = device_gradient(np.full(count, 1 / count), responses, range(len(losses)))
    p = device_decision(gradient, len(losses) / count, updates)
    assert p.sum() == pytest.approx(1.0) and (p > 0).all()
    assert (np.diff(p[: len(losses)][order]) >= -1e-12).all()


def test_bad_setting() -> None:
    with pytest.raises(ValueError, match="expected one of cross-device, cross-silo"):
        AAggFF(aaggff_setting="both")
