"""FedEBA's pure functions: the specification's numbers, limits, and invariances."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fedsuite.messages.records import Arrays
from fedsuite.strategies.fair.fedeba_equations import (
    effective_clients,
    entropy_weights,
    fair_gradient,
    fairness_angle,
    model_alignment,
    practical_alignment,
    temperature_at,
    temperature_for_clients,
)

LOSSES = (0.5, 1.0, 2.0, 4.0)

losses_lists = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=12)
temperatures = st.floats(0.05, 50.0)


def close(found: object, expected: object, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


# ---- T1 to T4: weights


@pytest.mark.parametrize(
    ("temperature", "weights", "entropy", "mean_loss", "effective"),
    [
        (1, (0.02484727, 0.04096623, 0.11135776, 0.82282873), 0.627587, 3.567420, 1.4456),
        (5, (0.18285606, 0.20208720, 0.24682986, 0.36822688), 1.347040, 2.260082, 3.6929),
        (20, (0.23285893, 0.23875379, 0.25099495, 0.27739232), 1.383985, 1.966742, 3.9813),
    ],
)
def test_weights(
    temperature: float,
    weights: tuple[float, ...],
    entropy: float,
    mean_loss: float,
    effective: float,
) -> None:
    found = entropy_weights(LOSSES, temperature)
    close(found, weights, 1e-8)
    close(-(found * np.log(found)).sum(), entropy)
    close(found @ np.array(LOSSES), mean_loss)
    close(effective_clients(found), effective, 1e-4)


def test_weights_at_half_and_with_prior() -> None:
    close(entropy_weights(LOSSES, 0.5)[-1], 0.97875488, 1e-8)
    weights = entropy_weights(LOSSES, 1, (100, 200, 300, 400))
    close(weights, (0.0066576, 0.0219530, 0.0895119, 0.8818775), 1e-7)
    close(entropy_weights([3.0, 3.0], 1, [1, 3]), [0.25, 0.75], 1e-15)


def test_weights_of_huge_losses_do_not_overflow() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(entropy_weights((1000, 1001), 0.1), (4.53979e-5, 0.99995460), 1e-8)
        close(entropy_weights((1e308, 0.0, 1e308), 0.1), (0.5, 0.0, 0.5))
        close(entropy_weights((1e308, 1.0), 1e-300, (0, 1)), (0.0, 1.0))
        close(entropy_weights((0.0, 0.0), 1e-300), (0.5, 0.5))


def test_weights_at_the_extremes() -> None:
    close(entropy_weights(LOSSES, 1e9), [0.25] * 4, 1e-8)
    close(entropy_weights(LOSSES, math.inf), [0.25] * 4, 0)
    close(entropy_weights(LOSSES, 0.1), (0, 0, 0, 1), 1e-8)
    close(entropy_weights([7.0], 0.1), [1.0], 0)


def test_no_other_weights_have_more_entropy_plus_loss() -> None:
    """P1: softmax maximises H(p) + sum p F / tau; the optimum is log sum exp(F / tau)."""
    values = np.array(LOSSES)

    def objective(weights: np.ndarray) -> np.ndarray:
        logs = np.log(np.maximum(weights, 1e-300))
        return np.asarray((weights * (values / 2.0 - logs)).sum(axis=-1))

    best = objective(entropy_weights(LOSSES, 2.0))
    close(best, np.log(np.exp(values / 2.0).sum()), 1e-12)
    assert (objective(np.random.default_rng(0).dirichlet(np.ones(4), 10_000)) < best).all()


def test_temperature_for_a_number_of_clients() -> None:
    # 1 / (s^2 + (1 - s)^2) = 1.6 at s = 3 / 4, whose odds are 3.
    close(temperature_for_clients((0.0, 1.0), 1.6), 1 / math.log(3), 1e-12)
    close(temperature_for_clients((5.0, 15.0), 1.6), 10 / math.log(3), 1e-11)
    # A prior of odds 3 is overcome to 1, and to odds of 6.51 the other way.
    close(temperature_for_clients((0.0, 1.0), 1.6, (3, 1)), math.inf)
    close(temperature_for_clients((0.0, 1.0), 1.3, (3, 1)), 1 / math.log(3 * 6.51323), 1e-5)


def test_where_no_temperature_gives_a_number_of_clients() -> None:
    assert temperature_for_clients((2.0, 2.0, 2.0), 2.0) == math.inf
    assert temperature_for_clients(LOSSES, 4.0) == math.inf
    tied = temperature_for_clients((0.0, 3.0, 3.0), 1.5)
    close(entropy_weights((0.0, 3.0, 3.0), tied), (0.0, 0.5, 0.5), 1e-12)
    close(entropy_weights(LOSSES, temperature_for_clients(LOSSES, 0.0))[-1], 1.0, 1e-6)


# Equal weights of 12 clients amount to a little more than 12, by rounding.
@example([0.0] * 10 + [1.0, 2.125], 1.0, 1.0)
@given(losses_lists, st.floats(0.01, 1.0), st.floats(1e-3, 1e3))
def test_a_number_of_clients_holds_at_any_scale(
    losses: list[float], share: float, scale: float
) -> None:
    values = np.array(losses)
    ties = int((values > values.max() - 1e-3).sum())
    target = share * len(values)
    assume(target > ties + 1e-3)
    weights = entropy_weights(values, temperature_for_clients(values, target))
    close(1 / (weights @ weights), target, 1e-6)
    scaled = entropy_weights(
        scale * values, temperature_for_clients(scale * values, target)
    )
    close(scaled, weights, 1e-6)


@given(losses_lists, temperatures, st.floats(0.0, 100.0))
def test_weights_ignore_a_common_shift(
    losses: list[float], temperature: float, shift: float
) -> None:
    weights = entropy_weights(losses, temperature)
    close(weights.sum(), 1.0, 1e-12)
    assert (weights >= 0).all()
    shifted = [loss + shift for loss in losses]
    close(entropy_weights(shifted, temperature), weights, 1e-9)
    scaled = [3.0 * loss for loss in losses]
    close(entropy_weights(scaled, 3.0 * temperature), weights, 1e-9)


@given(losses_lists, temperatures, st.integers(0, 99))
def test_weights_and_angle_go_with_the_order_of_clients(
    losses: list[float], temperature: float, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(losses))
    moved = np.array(losses)[order]
    expected = entropy_weights(losses, temperature)[order]
    close(entropy_weights(moved, temperature), expected, 1e-12)
    close(fairness_angle(moved), fairness_angle(losses), 1e-6)


@given(losses_lists, temperatures, st.floats(0.01, 5.0))
def test_a_larger_loss_gets_a_larger_weight(
    losses: list[float], temperature: float, rise: float
) -> None:
    assume(len(losses) > 1)
    before = entropy_weights(losses, temperature)[0]
    after = entropy_weights([losses[0] + rise, *losses[1:]], temperature)[0]
    assert after >= before
    # Strictly, unless both are 0 or 1 up to rounding.
    assert after > before or before < 1e-300 or before > 1 - 1e-9


# ---- T5: angle


@pytest.mark.parametrize(
    ("losses", "angle"),
    [
        ((1, 2, 3, 4), 24.094843),
        ((1,) * 9 + (10,), 54.865807),
        ((0,) * 9 + (10,), 71.565051),
    ],
)
def test_angle(losses: tuple[float, ...], angle: float) -> None:
    close(fairness_angle(losses), angle)
    close(fairness_angle([7 * loss for loss in losses]), angle)
    close(fairness_angle(losses[::-1]), angle)
    coefficient_of_variation = np.std(losses) / np.mean(losses)
    close(fairness_angle(losses), math.degrees(math.atan(coefficient_of_variation)))


@pytest.mark.parametrize("loss", [8.0, 0.1, 1 / 3, 1e-300, 5e-324, 1e308, 0.0])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_angle_of_equal_losses_is_exactly_zero(loss: float, count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fairness_angle([loss] * count) == 0.0


@given(losses_lists, st.floats(1e-6, 1e6))
def test_angle_is_bounded_and_free_of_scale(losses: list[float], scale: float) -> None:
    assume(max(losses) == 0 or max(losses) > 1e-200)
    angle = fairness_angle(losses)
    highest = math.degrees(math.acos(1 / math.sqrt(len(losses))))
    assert 0.0 <= angle <= highest + 1e-6 < 90.0
    close(fairness_angle([scale * loss for loss in losses]), angle, 1e-5)


# ---- directions


def array(*values: float, dtype: str = "float64") -> Arrays:
    return {"w": np.array(values, dtype=dtype)}


def test_fair_gradient_by_hand_and_in_the_gradients_dtype() -> None:
    gradients = [array(4.0, 0.0, dtype="float32"), array(0.0, 8.0, dtype="float32")]
    found = fair_gradient(gradients, [0.75, 0.25])
    assert found["w"].dtype == np.float32
    np.testing.assert_array_equal(found["w"], [3.0, 2.0])


def test_fair_gradient_is_the_gradient_of_the_tilted_loss() -> None:
    """T11: sum p~ grad F = grad of tau log sum exp(F / tau), in one dimension and a net."""

    def tilted(x: float) -> float:
        return 5 * math.log(math.exp(2 * (x - 2) ** 2 / 5) + math.exp((x + 4) ** 2 / 2 / 5))

    weights = entropy_weights([18.0, 4.5], 5.0)
    fair = fair_gradient([array(-12.0), array(3.0)], weights)["w"][0]
    close(fair, -11.05539966, 1e-8)
    close((tilted(-1 + 1e-5) - tilted(-1 - 1e-5)) / 2e-5, fair, 1e-6)

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    net.double()
    parameters = dict(net.named_parameters())
    losses = [
        torch.nn.functional.cross_entropy(
            net(torch.randn(6, 4, dtype=torch.float64)), torch.randint(3, (6,))
        )
        for _ in range(5)
    ]
    gradients: list[Arrays] = [
        dict(
            zip(
                parameters,
                (
                    g.numpy()
                    for g in torch.autograd.grad(
                        loss, list(parameters.values()), retain_graph=True
                    )
                ),
                strict=True,
            )
        )
        for loss in losses
    ]
    exact = torch.autograd.grad(
        0.1 * torch.logsumexp(torch.stack(losses) / 0.1, 0), list(parameters.values())
    )
    fair_net = fair_gradient(gradients, entropy_weights([x.item() for x in losses], 0.1))
    for found, expected in zip(fair_net.values(), exact, strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9, atol=1e-12)


def test_model_alignment_by_hand() -> None:
    updates, first = [array(1.0, 2.0), array(-1.0, 0.0)], [array(0.5, 0.5), array(0.0, 0.0)]
    found = model_alignment(updates, first, [0.75, 0.25], 0.5)
    # 0.5 (0.5, 1.5) + 0.5 (0.25, 0.25)
    close(found["w"], [0.375, 0.875], 1e-15)
    # Nine of ten examples are the first client's: 0.5 (0.5, 1.5) + 0.5 (0.45, 0.45).
    shared = model_alignment(updates, first, [0.75, 0.25], 0.5, [0.9, 0.1])
    close(shared["w"], [0.475, 0.975], 1e-15)
    close(model_alignment(updates, first, [0.75, 0.25], 0.0)["w"], [0.5, 1.5], 1e-15)
    for weights in ([0.75, 0.25], [0.1, 0.9]):
        close(model_alignment(updates, first, weights, 1.0)["w"], [0.25, 0.25], 1e-15)


def test_golden_model_alignment() -> None:
    """T7, from the clients' updates on."""
    weights = entropy_weights([7.3728, 3.66527813], 5.0)
    close(weights, (0.67732473, 0.32267527), 1e-8)
    found = model_alignment(
        [array(1.08), array(-0.2925)], [array(0.6), array(-0.15)], weights, 0.5
    )
    close(found["w"], [0.43106410], 1e-8)


def test_golden_practical_alignment_and_the_paper_s_own_form() -> None:
    """T8: the mixture of weights, and lines 14 to 16 of Algorithm 3 literally."""
    alpha, rate, steps = 0.5, 0.05, 2
    updates = [array(1.08), array(-0.2925)]
    after = entropy_weights([7.3728, 3.66527813], 5.0)
    before = entropy_weights([18.0, 4.5], 5.0)
    close((1 - alpha) * after + alpha * before, (0.80717569, 0.19282431), 1e-8)
    found = practical_alignment(updates, after, before, alpha)["w"]
    close(found, [0.81534863], 1e-8)

    path_gradients = [-update["w"] / (rate * steps) for update in updates]
    mean_gradient = sum(p * g for p, g in zip(before, path_gradients, strict=True))
    literal = sum(
        p * ((1 - alpha) * update["w"] - alpha * rate * steps * mean_gradient)
        for p, update in zip(after, updates, strict=True)
    )
    close(found, literal, 1e-12)


# ---- T16: schedules


def test_temperature_schedules() -> None:
    for schedule, expected in (
        ("constant", 1.0),
        ("linear", 0.5),
        ("concave", 0.70710678),
        ("convex", 0.125),
    ):
        close(temperature_at(11, 1.0, 0.1, schedule), expected, 1e-8)
        assert temperature_at(1, 0.3, 0.1, schedule) == 0.3
        assert temperature_at(50, 0.3, 0.0, schedule) == 0.3


# ---- refusals


@pytest.mark.parametrize(
    "call",
    [
        lambda: entropy_weights([], 1.0),
        lambda: entropy_weights([1.0, math.nan], 1.0),
        lambda: entropy_weights([1.0], 0.0),
        lambda: entropy_weights([1.0], math.nan),
        lambda: entropy_weights([1.0, 2.0], 1.0, [0.0, 0.0]),
        lambda: entropy_weights([1.0, 2.0], 1.0, [1.0, -1.0]),
        lambda: entropy_weights([1.0, 2.0], 1.0, [1.0]),
        lambda: fairness_angle([1.0, -1.0]),
        lambda: fairness_angle([math.inf]),
        lambda: fairness_angle([]),
        lambda: fair_gradient([array(1.0)], [0.0]),
        lambda: fair_gradient([array(1.0)], [0.5, 0.5]),
        lambda: model_alignment([array(1.0)], [array(1.0)], [1.0], 1.5),
        lambda: practical_alignment([array(1.0)], [1.0], [1.0], -0.1),
        lambda: temperature_at(1, 1.0, 0.1, "quadratic"),
        lambda: temperature_at(0, 1.0, 0.1, "linear"),
        lambda: temperature_at(1, -1.0, 0.1, "linear"),
        lambda: temperature_at(1, 1.0, -0.1, "linear"),
    ],
)
def test_impossible_arguments_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"expected|shorter|longer"):
        call()  # type: ignore[operator]
