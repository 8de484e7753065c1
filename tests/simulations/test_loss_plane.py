"""The plane through two paths, and the loss over it."""

import numpy as np
import pytest
import torch

from fedsuite.core.errors import RunError
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.decomposed import recompose
from fedsuite.training.evaluation import mean_loss
from simulations.decomposition.federation import Federation
from simulations.decomposition.filters import DenseSpace, flat
from simulations.decomposition.loss_plane import (
    Surface,
    Trajectory,
    make_surface,
    principal_plane,
    training_sample,
)
from tests.helpers import digits_experiment
from tests.results.made_runs import written


def test_the_plane_of_a_planar_path_recovers_it():
    first, second = np.eye(7)[1], (np.eye(7)[2] + np.eye(7)[5]) / 2**0.5
    made = np.array([(-3.0, 0.0), (3.0, 0.0), (0.0, 1.0), (0.0, -1.0)])
    centre = np.arange(7.0)
    points = centre + made @ np.array([first, second])
    plane = principal_plane(points)
    np.testing.assert_allclose(plane.centre, centre)
    np.testing.assert_allclose(plane.directions, [first, second], atol=1e-12)
    assert plane.explained == pytest.approx((0.9, 0.1))
    np.testing.assert_allclose(plane.coordinates(points), made, atol=1e-12)
    for point, (x, y) in zip(points, made, strict=True):
        np.testing.assert_allclose(plane.point(x, y), point, atol=1e-12)


def test_points_off_the_plane_are_projected():
    points = np.array([[4.0, 0, 0], [-4, 0, 0], [0, 2, 1], [0, -2, 1], [0, 0, -2]])
    plane = principal_plane(points)
    projected = [plane.point(*at) for at in plane.coordinates(points)]
    np.testing.assert_allclose(np.array(projected)[:, :2], points[:, :2], atol=1e-12)
    np.testing.assert_allclose(np.array(projected)[:, 2], 0, atol=1e-12)
    assert sum(plane.explained) < 1


def test_a_path_on_a_line_has_no_plane():
    with pytest.raises(RunError, match="on one line"):
        principal_plane(np.outer(np.arange(4.0), np.ones(5)))


@pytest.mark.parametrize("factored", [False, True])
def test_the_surface_has_the_loss_of_the_run_at_its_points(factored):
    keys = {"model": "cnn-shallow", "num_rounds": 1, "local_steps": 2}
    experiment = digits_experiment(**keys, decomposition=factored)
    federation = Federation(experiment)
    data = training_sample(federation.data, 100, 0)
    surface = Surface(recompose(federation.model), data)
    trajectory = Trajectory(DenseSpace(federation.model), surface.names)
    federation.run(federation.grid(), [trajectory])
    start, end = trajectory.points
    before = mean_loss(federation.model, data)
    assert surface.loss(start) == pytest.approx(before, rel=1e-5)
    assert surface.loss(end) != pytest.approx(before, rel=1e-5)
    assert surface.loss(start) == pytest.approx(before, rel=1e-5)


def test_a_point_is_the_parameters_in_order():
    experiment = digits_experiment()
    surface = make_surface(Federation(experiment), samples=50)
    model = Federation(experiment).model
    data = training_sample(Federation(experiment).data, 50, 0)
    arrays = {n: a + 0.1 * i for i, (n, a) in enumerate(model_arrays(model).items())}
    load_arrays(model, arrays)
    expected = mean_loss(model, data)
    assert surface.loss(flat(arrays.values())) == pytest.approx(expected, rel=1e-6)


def test_the_sample_is_of_all_clients_and_always_the_same():
    data = Federation(digits_experiment()).data
    sizes = [len(data.client(k).train) for k in range(4)]
    everything = training_sample(data, 0, 0)
    assert len(everything) == sum(sizes)
    assert torch.equal(everything.labels[: sizes[0]], data.client(0).train.labels)
    part, again, other = (training_sample(data, 30, seed) for seed in (0, 0, 1))
    assert len(part) == 30
    assert torch.equal(part.features, again.features)
    assert not torch.equal(part.features, other.features)


def test_command(simulate, experiment_file):
    file = experiment_file()
    options = ("--resolution", 3, "--samples", 40)
    code, out, err = simulate("decomposition.loss_plane", file, *options)
    assert (code, err) == (0, "")
    assert "dense: 2 rounds" in out
    rows = written("loss_plane")
    assert [(row["model"], row["round"]) for row in rows] == [
        (model, server_round) for model in ("dense", "factored") for server_round in "012"
    ]
    assert all(0 < float(row["loss"]) < 10 for row in rows)
