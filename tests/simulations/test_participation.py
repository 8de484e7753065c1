"""Accuracy against clients per round: gains by hand, and the command over made runs."""

import pytest

from fedsuite.experiment.experiment import Experiment
from fedsuite.sweeps import sweep
from simulations.decomposition import participation
from tests.results.made_runs import make_run, written


def test_gains_are_paired_by_seed():
    scores = {
        "dense": {2: {0: 50.0, 1: 60.0}, 5: {0: 70.0}},
        "factored": {2: {0: 53.0, 1: 61.0, 2: 90.0}, 5: {0: 69.0}},
    }
    rows = participation.summarise(scores)
    assert rows[0] == (2, None, "dense", 2, 55, pytest.approx(50**0.5), None, None)
    clients, latent, model, seeds, accuracy, _, gain, deviation = rows[1]
    assert (clients, latent, model, seeds, accuracy) == (2, 2, "factored", 3, 68)
    assert (gain, deviation) == (2, pytest.approx(2**0.5))
    assert rows[3] == (5, 20, "factored", 1, 69, None, -1, None)


def test_participation_command(simulate, experiment_file, monkeypatch):
    """The sweep itself has tests of its own."""
    asked = []

    def run_sweep(file, *, grid, seeds, workers, output, overrides):
        experiment = Experiment.load(file, overrides)
        asked.append((grid, seeds, output.name, experiment["decomposition"]))
        accuracies = (0.1, 0.7) if experiment["decomposition"] else (0.9, 0.6)
        values = {"clients-per-round": 3}
        make_run(
            output / "run", experiment=values, accuracies=[(each,) for each in accuracies]
        )
        return [output / "run"]

    monkeypatch.setattr(sweep, "run_sweep", run_sweep)
    file = experiment_file(decomposition=True, atoms=4)
    code, _, err = simulate(
        "decomposition.participation", file, "--clients", "3", "--seeds", 1
    )
    assert (code, err) == (0, "")
    grid = ["clients-per-round=3"]
    assert asked == [(grid, 1, "sweep_dense", False), (grid, 1, "sweep_factored", True)]
    dense, factored = written("participation")
    assert float(dense["accuracy %"]) == pytest.approx(60)
    assert float(factored["gain over dense"]) == pytest.approx(10)
    assert factored["latent clients"] == "6"
