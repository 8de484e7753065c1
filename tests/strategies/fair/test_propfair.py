"""PropFair: golden values, the threshold, and the extremes that give FedAvg."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.fair.propfair import PropFairClient, proportional_loss
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.fair.propfair import PropFair
from fedsuite.training.loop import TrainingOptions
from tests.helpers import (
    MatrixLoss,
    TamperingGrid,
    Trace,
    digits_experiment,
    matrix_app,
    run,
    run_digits,
)
from tests.strategies.fair.fair_rounds import three


def value_and_factor(
    loss: float, baseline: float, threshold: float, extension: str
) -> tuple[float, float]:
    """Return the surrogate, and what multiplies the gradient of the plain loss."""
    plain = torch.tensor(loss, dtype=torch.float64, requires_grad=True)
    value = proportional_loss(plain, baseline, threshold, extension)
    value.backward()
    assert plain.grad is not None
    return float(value.detach()), float(plain.grad)


@pytest.mark.parametrize(
    ("loss", "extension", "value", "factor"),
    [
        (0.5, "tangent", 0.287682, 0.666667),
        (0.5, "code", 0.287682, 0.666667),
        (1.9, "tangent", 2.802585, 5.0),
        (1.9, "code", 0.95, 0.5),
        (50.0, "tangent", -math.log(0.1) + 48.2 / 0.2, 5.0),
        (0.0, "tangent", 0.0, 0.5),
    ],
)
def test_golden_values(loss: float, extension: str, value: float, factor: float) -> None:
    """M = 2, epsilon = 0.2: -log(0.75) and 1 / 1.5; -log(0.1) + 0.1 / 0.2 and 1 / 0.2."""
    found = value_and_factor(loss, 2.0, 0.2, extension)
    assert found == pytest.approx((value, factor), abs=5e-7)


@given(st.floats(0.05, 10), st.floats(0.01, 5), st.floats(0, 20))
def test_tangent_is_continuous_and_the_factor_is_bounded(
    baseline: float, threshold: float, loss: float
) -> None:
    value, factor = value_and_factor(loss, baseline, threshold, "tangent")
    assert factor == pytest.approx(1 / max(baseline - loss, threshold), rel=1e-9)
    edge = baseline - threshold
    if edge > 0:
        below = value_and_factor(edge * (1 - 1e-12), baseline, threshold, "tangent")
        above = value_and_factor(edge * (1 + 1e-12), baseline, threshold, "tangent")
        assert below[0] == pytest.approx(above[0], abs=1e-8)
    assert math.isfinite(value)


class MatrixPropFairClient(PropFairClient):
    """PropFair on the quadratic loss of ``tests.helpers``."""

    def loss(self, model, features, labels):
        plain = MatrixLoss.loss(self, model, features, labels)
        return proportional_loss(
            plain,
            self.propfair_baseline,
            self.propfair_threshold,
            self.propfair_extension,
        )


def quadratic(strategy: FedAvg, rate: float, num_rounds: int = 1) -> Trace:
    training = TrainingOptions(local_steps=1, batch_size=0, learning_rate=rate)
    app = matrix_app(MatrixPropFairClient, values=[1.0, 2.0, 4.0], training=training)
    return run(strategy, TamperingGrid(app, 3), num_rounds)


def test_golden_round() -> None:
    """Losses at W = 0 are 2, 8, 32; gradients -x; M = 10, epsilon = 4, rate 0.1.

    Client 0 and 1, M - l = 8 and 2 < 4: factors 1/8 and 1/4; client 2: 1/4. Models are
    0.1 (1/8, 2/4, 4/4), the mean by examples 1, 2, 1 is 0.1 (1/8 + 1 + 1) / 4.
    """
    strategy = PropFair(propfair_baseline=10.0, propfair_threshold=4.0, **three())
    [weight] = quadratic(strategy, 0.1).weights
    assert weight == pytest.approx(0.1 * 2.125 / 4, rel=1e-6)


def test_baseline_equal_to_threshold_is_fedavg_at_a_scaled_rate() -> None:
    """FedEBA+'s setting M = epsilon = 0.2: the rate 0.1 is 0.5, whatever the extension."""
    options = {"learning_rate": 0.1, "local_steps": 3}
    fast = run_digits(digits_experiment(learning_rate=0.5, local_steps=3)).arrays[-1]
    for extension in ("tangent", "code"):
        fair = run_digits(
            digits_experiment(
                method="propfair",
                propfair_baseline=0.2,
                propfair_threshold=0.2,
                propfair_extension=extension,
                **options,
            )
        ).arrays[-1]
        for name, array in fair.items():
            np.testing.assert_allclose(array, fast[name], rtol=1e-4, atol=1e-6)


def test_large_baseline_is_fedavg_at_a_scaled_rate() -> None:
    plain = run_digits(digits_experiment(local_steps=3)).arrays[-1]
    fair = run_digits(
        digits_experiment(
            method="propfair", propfair_baseline=1e5, learning_rate=1e4, local_steps=3
        )
    ).arrays[-1]
    for name, array in fair.items():
        np.testing.assert_allclose(array, plain[name], rtol=1e-3, atol=1e-5)
    other = run_digits(
        digits_experiment(
            method="propfair", propfair_baseline=10.0, learning_rate=1.0, local_steps=3
        )
    ).arrays[-1]
    assert any(np.abs(other[name] - plain[name]).max() > 1e-2 for name in plain)


def test_values_travel_with_the_message() -> None:
    grid = TamperingGrid(matrix_app(MatrixPropFairClient), 3)
    run(PropFair(propfair_baseline=5.0, fraction_evaluate=0.0), grid)
    config = grid.sent[0].content["config"]
    assert config["propfair-baseline"] == 5.0
    assert config["propfair-threshold"] == 0.2
    assert config["propfair-extension"] == "tangent"


def test_client_without_them_says_so() -> None:
    trace = run(FedAvg(), TamperingGrid(matrix_app(MatrixPropFairClient), 3))
    reasons = [rejection.reason for rejection in trace.reports[0].train.rejections]
    assert len(reasons) == 3
    assert "no number propfair-baseline: use the strategy" in reasons[0]


def test_huge_losses_stay_finite() -> None:
    app = matrix_app(MatrixPropFairClient, values=[1e9, -1e9, 0.0])
    trace = run(PropFair(**three()), TamperingGrid(app, 3), 2)
    assert np.isfinite(trace.weights).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"propfair_baseline": 0.0}, "propfair_baseline = 0.0: expected"),
        ({"propfair_threshold": -1.0}, "propfair_threshold = -1.0: expected"),
        ({"propfair_extension": "huber"}, "expected one of tangent, code"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PropFair(**options)
