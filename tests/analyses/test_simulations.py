"""Analyses that need no experiment: numbers of the specification, and by hand."""

import numpy as np
import pytest

from fedsuite.analyses import latent_variance
from fedsuite.analyses.synthetic_landscape import (
    OPTIMUM,
    START,
    Settings,
    averaged_path,
    draw_clients,
    expected_loss,
    variance_of,
)
from fedsuite.core.rng import numpy_stream
from tests.analyses.test_commands import written


def test_ratios_of_the_specification():
    rows = latent_variance.measure(clients=10, draws=100_000, seed=0)
    exact = [row.exact for row in rows]
    assert exact == pytest.approx([0.996, 0.70, 0.24, 0.10], abs=5e-3)
    assert [row.simulated for row in rows] == pytest.approx(exact, abs=0.02)
    assert {row.claimed for row in rows} == {0.1}


def test_ratio_figure_has_curve_points_and_claim():
    rows = latent_variance.measure(clients=4, draws=1000, seed=0)
    (axes,) = latent_variance.ratio_figure(4, rows).axes
    curve, points, claim = axes.get_lines()
    assert curve.get_ydata()[0] == pytest.approx(0.25)
    assert list(points.get_ydata()) == [row.simulated for row in rows]
    assert set(claim.get_ydata()) == {0.25}


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


def test_landscape_command(analyse):
    code, _, err = analyse("synthetic-landscape", "--repetitions", 3, "--rounds", 2)
    assert (code, err) == (0, "")
    rows = written("synthetic_landscape")
    assert [row["round"] for row in rows] == ["1", "2"]
    few, many, ratio = (
        float(rows[1][name])
        for name in ("variance, 5 models", "variance, 25 models", "ratio")
    )
    assert ratio == pytest.approx(few / many)
