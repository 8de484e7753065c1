"""Groups of a model's parameters."""

import pytest
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.models import build_model
from fedsuite.models.groups import ParameterGroups, head_module, parameter_groups


def test_last_linear_layer_is_the_head() -> None:
    groups = parameter_groups(build_model("mlp", (28, 28), 10, 0))
    assert len(groups.head) == 2
    assert len(groups.other) == 4
    assert not groups.atoms
    assert not groups.coefficients
    assert groups.body == set(groups.other)


def test_buffers_are_in_the_body() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    groups = parameter_groups(model)
    assert groups.head == ("1.weight", "1.bias")
    assert set(groups.names) == set(model.state_dict())
    assert "0.running_mean" in groups.body


def test_head_can_be_named() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    assert parameter_groups(model).head == ("2.weight",)
    assert parameter_groups(model, head="1").head == ("1.weight", "1.bias")


@pytest.mark.parametrize("head", [None, "fc"])
def test_model_without_the_head_is_refused(head: str | None) -> None:
    with pytest.raises(ConfigError, match="head"):
        parameter_groups(nn.Sequential(nn.Conv2d(1, 1, 3)), head)


def test_a_name_stands_in_one_group() -> None:
    with pytest.raises(ValueError, match="two groups"):
        ParameterGroups(head=("a",), other=("a", "b"))


def test_a_normalisation_goes_with_the_layer_before_it() -> None:
    model = nn.Sequential(
        nn.BatchNorm2d(1),
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 3, bias=False),
        nn.Linear(3, 2),
    )
    layers = parameter_groups(model).layers
    assert layers[1:] == (("5.weight",), ("6.weight", "6.bias"))
    assert [name for layer in layers for name in layer] == list(model.state_dict())
    assert "0.running_mean" in layers[0]
    assert "2.running_mean" in layers[0]


def test_head_module_is_the_innermost_that_holds_the_head() -> None:
    head = nn.Linear(3, 2)
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), head))
    assert head_module(model, parameter_groups(model)) is head
    with pytest.raises(ConfigError, match="no module of its own"):
        head_module(model, ParameterGroups(head=("1.1.weight",), other=()))
    with pytest.raises(ConfigError, match="no module of its own"):
        head_module(nn.Sequential(nn.ReLU()), ParameterGroups(head=(), other=()))
