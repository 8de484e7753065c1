"""Figures' commands: one-line errors, nothing replaced, and variants of an experiment."""

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.experiment.command_options import overrides
from fedsuite.experiment.experiment import Experiment
from simulations.decomposition.federation import Federation
from simulations.decomposition.variants import variant
from tests.helpers import digits_experiment

ERRORS = {
    "no file": (("loss_plane", "nothing.toml"), "cannot read experiment nothing.toml"),
    "no convolution, factored": (
        ("aggregation_variance", "linear.toml", "--models", "factored"),
        "without convolutions",
    ),
    "no convolution, dense": (
        ("aggregation_variance", "linear.toml", "--models", "dense"),
        "has no convolutions",
    ),
    "unknown key": (
        ("participation", "experiment.toml", "--set", "nothing=1"),
        "unknown key 'nothing'",
    ),
    "too many clients": (
        ("participation", "experiment.toml", "--clients", "2,40"),
        "= 40 cannot go with num-clients = 4: there are no more clients; set no more, or 0",
    ),
    "running statistics": (
        ("loss_plane", "experiment.toml", "--set", "model=mobilenet-v2"),
        "keeps running statistics",
    ),
}


@pytest.mark.parametrize(("arguments", "words"), ERRORS.values(), ids=ERRORS)
def test_errors_are_one_line(simulate, experiment_file, arguments, words):
    experiment_file(model="linear").rename("linear.toml")
    experiment_file()
    name, *given = arguments
    code, _, err = simulate(f"decomposition.{name}", *given)
    assert code == 1
    assert words in err
    assert err.startswith("fedsuite: error: ")
    assert err.count("\n") == 1


def test_variants_of_an_experiment(experiment_file):
    path = experiment_file(decomposition=True, atoms=5, coefficient_period=3)
    given = overrides(["seed=4"])
    factored = Experiment.load(path, variant("factored", given))
    assert (factored["decomposition"], factored["atoms"], factored["seed"]) == (True, 5, 4)
    dense = Experiment.load(path, variant("dense", given))
    assert dense["decomposition"] is False
    assert "atoms" not in dense.values
    assert dense["seed"] == 4


def test_figures_of_a_shared_model_need_one():
    with pytest.raises(ConfigError, match="method standalone: its clients share no model"):
        Federation(digits_experiment(method="standalone"))
