"""Experiments on factored networks: their keys, and one whole run."""

import pytest
import torch
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.models import build_model, decompose, recompose
from fedsuite.models.decomposed import DecomposedConv2d
from tests.helpers import bits, digits_experiment, final_bits, run_digits


def layers(model: nn.Module) -> dict[str, DecomposedConv2d]:
    return {n: m for n, m in model.named_modules() if isinstance(m, DecomposedConv2d)}


def model_of(**changes) -> nn.Module:
    experiment = digits_experiment(model="cnn-shallow", **changes)
    return experiment_model(experiment, federated_data(experiment))


def test_experiment_decides_the_factors():
    assert not layers(model_of())
    model = model_of(decomposition=True, seed=3)
    dense = build_model("cnn-shallow", (1, 8, 8), 10, 3)
    expected = decompose(dense, 9, initialisation="kaiming-both", seed=3)
    found = model.state_dict()
    assert found.keys() == expected.state_dict().keys()
    assert all(torch.equal(found[k], v) for k, v in expected.state_dict().items())
    kept = model_of(decomposition=True, atoms=25, atoms_initialisation="keep", seed=3)
    assert layers(kept)["0"].atoms.shape == (25, 5, 5)
    torch.testing.assert_close(recompose(kept)[0].weight, dense[0].weight)


def test_switches_reach_the_layers():
    keys = {"dataset": "digits", "decomposition": True, "atoms": 1}
    experiment = digits_experiment(**keys).replace(model="resnet18-imagenet")
    data = federated_data(experiment)
    plain = layers(experiment_model(experiment, data))
    experiment = experiment.replace(decompose_stem=True, decompose_1x1=True)
    assert len(plain) == 16
    assert len(layers(experiment_model(experiment, data))) == 20


def test_keys_of_factors_need_decomposition():
    with pytest.raises(
        ConfigError, match=r"atoms = 6: it does not apply .* decomposition true"
    ):
        digits_experiment(atoms=6)
    with pytest.raises(ConfigError, match="atoms = 0"):
        digits_experiment(decomposition=True, atoms=0)
    with pytest.raises(ConfigError, match="atoms-initialisation = 'kaiming'"):
        digits_experiment(decomposition=True, atoms_initialisation="kaiming")
    with pytest.raises(
        ConfigError, match=r"decomposition = true: model mlp: .* without conv"
    ):
        experiment = digits_experiment(decomposition=True, model="mlp")
        experiment_model(experiment, federated_data(experiment))


def test_factors_are_trained_and_averaged():
    changes = {"model": "cnn-shallow", "decomposition": True, "num_rounds": 2}
    trace = run_digits(digits_experiment(**changes))
    first, last = trace.arrays[0], trace.arrays[-1]
    assert {"0.atoms", "0.coefficients", "0.bias"} < set(last)
    assert all((first[name] != last[name]).any() for name in last)
    assert final_bits(**changes) == bits(last)
