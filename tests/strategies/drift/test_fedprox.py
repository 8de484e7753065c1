"""FedProx: its golden number, and the extremes that its page promises."""

import numpy as np
import pytest

from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.training.loop import TrainingOptions
from tests.helpers import (
    Matrix,
    MatrixClient,
    MatrixProxClient,
    TamperingGrid,
    Trace,
    final_bits,
    matrix_app,
    run,
    samples,
)


def run_prox(mu: float, steps: int, rate: float, num_rounds: int = 1) -> list[float]:
    training = TrainingOptions(local_steps=steps, batch_size=0, learning_rate=rate)
    app = matrix_app(MatrixProxClient, values=[4.0], counts=[1], training=training)
    strategy = FedProx(proximal_mu=mu, min_available_nodes=1)
    return run(strategy, TamperingGrid(app, 1), num_rounds).weights


@pytest.mark.parametrize(
    ("mu", "expected"),
    [(0.0, [3.0, 3.75]), (0.5, [2.5, 3.4375]), (1.0, [2.0, 3.0])],
)
def test_golden_number(mu: float, expected: list[float]) -> None:
    """From 0 to the target 4 in two steps of 1/2, by hand.

    w1 = 0 - (0 - 4) / 2 = 2; w2 = 2 - ((2 - 4) + mu (2 - 0)) / 2 = 3 - mu.
    In round 2 the term pulls towards the model of round 1.
    """
    assert run_prox(mu, steps=2, rate=0.5, num_rounds=2) == expected


def test_huge_mu_stays_at_the_start() -> None:
    """With a step size of 1 / mu; the step from w_t to its gradient is all that is left."""
    [stays] = run_prox(1e6, steps=100, rate=1e-6)
    [moves] = run_prox(0.0, steps=100, rate=1e-6)
    assert stays == pytest.approx(4e-6, rel=1e-3)
    assert moves == pytest.approx(4e-4, rel=1e-3)


def test_mu_0_is_fedavg_bit_for_bit() -> None:
    prox = final_bits(method="fedprox", proximal_mu=0.0)
    assert prox == final_bits()
    assert prox != final_bits(method="fedprox", proximal_mu=0.5)


def test_mu_travels_as_in_flowers_fedprox() -> None:
    grid = TamperingGrid(matrix_app(MatrixProxClient), 3)
    run(FedProx(proximal_mu=0.25, fraction_evaluate=0.0), grid)
    assert {message.content["config"]["proximal-mu"] for message in grid.sent} == {0.25}


def test_client_without_mu_says_so() -> None:
    trace: Trace = run(FedAvg(), TamperingGrid(matrix_app(MatrixProxClient), 3))
    reasons = [rejection.reason for rejection in trace.reports[0].train.rejections]
    assert len(reasons) == 3
    assert (
        "the message has no number proximal-mu: use the strategy that belongs" in reasons[0]
    )


def test_term_pulls_towards_the_model_just_received() -> None:
    """One client object over two rounds, as a worker keeps them: from 0, then from 2."""
    training = TrainingOptions(local_steps=2, batch_size=0, learning_rate=0.5)
    data = samples(4.0, 1)
    client = MatrixProxClient(Matrix(), data, data, training=training)
    weights = [np.zeros((2, 2), dtype=np.float32)]
    reached = []
    for _ in range(2):
        weights, _, _ = client.fit(weights, {"proximal-mu": 1.0})
        reached.append(float(weights[0][0, 0]))
    assert reached == [2.0, 3.0]


def test_plain_client_ignores_mu() -> None:
    trace = run(FedProx(proximal_mu=5.0), TamperingGrid(matrix_app(MatrixClient), 3))
    assert trace.weights == [2.25]


@pytest.mark.parametrize("mu", [-0.1, float("nan")])
def test_bad_mu(mu: float) -> None:
    with pytest.raises(ValueError, match=r"proximal_mu = .*: expected"):
        FedProx(proximal_mu=mu)
