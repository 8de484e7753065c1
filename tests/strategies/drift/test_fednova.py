"""FedNova: its golden number, and equal steps, which give FedAvg."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.strategies.drift.fednova import FedNova, believed_steps, normalised_step
from fedsuite.training.loop import TrainingOptions
from tests.helpers import (
    MatrixClient,
    TamperingGrid,
    digits_experiment,
    matrix_app,
    run,
    run_digits,
)


def test_golden_step() -> None:
    """Updates 0.2 in one step and -0.6 in three: 0.2 and -0.2 a step, 0 in the mean."""
    updates = np.array([[0.2], [-0.6]])
    step = normalised_step(updates, np.array([0.5, 0.5]), np.array([1.0, 3.0]))
    np.testing.assert_allclose(step, [0.0], atol=1e-15)
    plain = normalised_step(updates, np.array([0.5, 0.5]), np.ones(2))
    np.testing.assert_allclose(plain, [-0.2])


@pytest.mark.parametrize("steps", [[0.0, 3.0], [0.0, 0.0]])
def test_who_took_no_step_moves_nothing(steps: list[float]) -> None:
    """The other's -0.6 in three steps is half of -0.2 a step, times tau_eff of 3 / 2."""
    step = normalised_step(np.array([[0.0], [-0.6]]), np.full(2, 0.5), np.array(steps))
    np.testing.assert_allclose(step, [-0.15 if steps[1] else 0.0])


def test_golden_round() -> None:
    """From 0, rate 1/2 and one sample a batch: client 0 goes to 1 / 2, client 1 to 3 / 2.

    They take 1 and 2 steps; p is 1/3 and 2/3; tau_eff is 5/3, the mean of the normalised
    updates 1/3 (1/2) + 2/3 (3/4) = 2/3: the model is 10/9, where FedAvg's is 7/6.
    """
    work = TrainingOptions(local_epochs=1, batch_size=1, learning_rate=0.5)
    app = matrix_app(MatrixClient, values=[1.0, 2.0], counts=[1, 2], training=work)
    [weight] = run(FedNova(), TamperingGrid(app, 2)).weights
    assert weight == pytest.approx(10 / 9)


@pytest.mark.parametrize(
    ("claimed", "counts"),
    [(19.9, 19.9), (20.1, 20.0), (1e6, 20.0), (5.1, 5.1), (4.9, 5.0), (1.0, 5.0)],
)
def test_steps_are_believed_within_twice_the_median(claimed: float, counts: float) -> None:
    """Four clients take ten steps each; a fifth of the same size says what it likes."""
    steps = np.array([10.0, 10, 10, 10, claimed])
    believed = believed_steps(steps, np.full(5, 30.0), 2.0)
    assert believed.tolist() == [10, 10, 10, 10, counts]
    assert believed_steps(steps, np.full(5, 30.0), np.inf).tolist() == steps.tolist()


def test_steps_by_epochs_and_steps_of_one_number_are_both_believed() -> None:
    sizes = np.array([10.0, 20, 30, 40, 300])
    for honest in (sizes / 10, np.full(5, 7.0)):
        assert believed_steps(honest, sizes, 2.0).tolist() == honest.tolist()


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=6), st.integers(1, 50))
def test_equal_steps_are_fedavg(updates: list[float], steps: int) -> None:
    shares = np.full(len(updates), 1 / len(updates))
    column = np.array(updates)[:, np.newaxis]
    found = normalised_step(column, shares, np.full(len(updates), float(steps)))
    np.testing.assert_allclose(found, [np.mean(updates)], atol=1e-12)


def test_equal_steps_are_fedavg_in_a_run() -> None:
    nova, plain = (
        run_digits(digits_experiment(method=method, local_steps=3)).arrays[-1]
        for method in ("fednova", "fedavg")
    )
    for name, array in plain.items():
        np.testing.assert_allclose(nova[name], array, rtol=1e-5, atol=1e-6)


def test_other_optimisers_are_refused() -> None:
    with pytest.raises(ConfigError, match="that of plain SGD"):
        digits_experiment(method="fednova", momentum=0.9)
