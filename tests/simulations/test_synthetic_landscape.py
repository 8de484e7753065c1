"""FedAvg on a model of two weights: numbers by hand, and the command."""

import numpy as np
import pytest

from fedsuite.core.rng import numpy_stream
from simulations.decomposition.synthetic_landscape import (
    OPTIMUM,
    START,
    Settings,
    averaged_path,
    draw_clients,
    expected_loss,
    variance_of,
)
from tests.results.made_runs import written


def test_the_expected_loss_and_its_least():
    assert pytest.approx([1 / 6, 1 / 6]) == OPTIMUM
    assert expected_loss(OPTIMUM) == pytest.approx(1 / 6)
    assert expected_loss(np.zeros(2)) == pytest.approx(1 / 2)
    rng = numpy_stream(0, "test")
    inputs, labels = draw_clients(1, 200_000, rng)
    weights = np.array([0.3, -0.1])
    measured = 0.5 * ((inputs[0] @ weights - labels) ** 2).mean()
    assert expected_loss(weights) == pytest.approx(measured, rel=0.01)


def test_two_clients_one_step_by_hand():
    inputs = np.array([[[1.0, 0.0]], [[0.0, 2.0]]])
    settings = Settings(samples=1, learning_rate=0.1, steps=1, rounds=1)
    path = averaged_path(inputs, np.array([1.0]), settings)
    # Errors at (-0.2, 0.4) are -1.2 and -0.2, steps (0.12, 0) and (0, 0.04).
    assert path.tolist() == [START.tolist(), pytest.approx([-0.14, 0.42])]
    twice = averaged_path(inputs, np.array([1.0]), Settings(1, 0.1, 2, 1))
    # The first client goes on from -0.08, the second from 0.44.
    assert twice[1] == pytest.approx([(0.028 - 0.2) / 2, (0.4 + 0.464) / 2])


def test_variance_over_repetitions_by_hand():
    paths = np.array([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [3.0, 4.0]]])
    assert variance_of(paths).tolist() == [0, 1 + 4]


def test_five_times_the_models_have_a_fifth_of_the_variance():
    settings = Settings(rounds=6)
    ends = []
    for count in (5, 25):
        rng = numpy_stream(0, f"test-{count}")
        paths = [averaged_path(*draw_clients(count, 20, rng), settings) for _ in range(600)]
        ends.append(variance_of(np.array(paths))[-1])
    assert ends[0] / ends[1] == pytest.approx(5, rel=0.15)


def test_landscape_command(simulate):
    code, _, err = simulate(
        "decomposition.synthetic_landscape", "--repetitions", 3, "--rounds", 2
    )
    assert (code, err) == (0, "")
    rows = written("synthetic_landscape")
    assert [row["round"] for row in rows] == ["1", "2"]
    few, many, ratio = (
        float(rows[1][name])
        for name in ("variance, 5 models", "variance, 25 models", "ratio")
    )
    assert ratio == pytest.approx(few / many)
