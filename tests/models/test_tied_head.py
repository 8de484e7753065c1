"""A matrix that head and body share is in one group, under all its names."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.registry import METHODS
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment
from fedsuite.models import parameter_groups
from fedsuite.models.groups import ParameterGroups
from fedsuite.models.head import head_names
from fedsuite.strategies import load_strategy


class Tied(nn.Module):
    """A network whose head is its embedding."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(math.prod(input_shape), 16)
        self.embedding = nn.Embedding(num_classes, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, num_classes)
        self.head.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.body(inputs.flatten(1)))
        scores: Tensor = self.head(self.middle(hidden))
        return scores


def shared(model: nn.Module, names: set[str], others: set[str]) -> set[int]:
    known = dict(model.named_parameters(remove_duplicate=False))
    ids = [{id(known[n]) for n in side if n in known} for side in (names, others)]
    return ids[0] & ids[1]


def groups() -> tuple[Tied, ParameterGroups]:
    model = Tied((4,), 3)
    return model, parameter_groups(model)


def test_no_parameter_is_in_head_and_body() -> None:
    model, found = groups()
    assert set(found.head) == {"head.weight", "head.bias", "embedding.weight"}
    assert not shared(model, set(found.head), set(found.other))
    assert head_names(model) == set(found.head)
    assert head_names(model, "embedding") == {"head.weight", "embedding.weight"}


def test_no_parameter_is_in_two_layers() -> None:
    model, found = groups()
    assert found.layers[-1] == ("head.weight", "head.bias") or set(found.layers[-1]) == {
        *found.head
    }
    for number, layer in enumerate(found.layers):
        for other in found.layers[number + 1 :]:
            assert not shared(model, set(layer), set(other))
    assert sorted(n for layer in found.layers for n in layer) == sorted(model.state_dict())


def test_a_head_of_its_own_is_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    assert parameter_groups(model).head == ("1.weight", "1.bias")


@pytest.mark.parametrize(
    "method", ["fedper", "fedrep", "fedbabu", "lg-fedavg", "fedas", "fedpac", "fedrod"]
)
def test_methods_of_parts_run_or_refuse_in_one_line(method: str, tmp_path: Path) -> None:
    values = {
        "method": method,
        "model": f"{__name__}:Tied",
        "num-clients": 3,
        "num-rounds": 1,
        "batch-size": 64,
        "report": False,
    }
    if method == "fedpac":
        with pytest.raises(FedsuiteError, match="fedpac needs a linear layer of its own"):
            run_local(Experiment.from_values(values), tmp_path / "run")
        return
    run_local(Experiment.from_values(values), tmp_path / "run")
    assert '"finished"' in (tmp_path / "run" / "manifest.json").read_text()


def test_clients_of_fedper_keep_the_whole_matrix() -> None:
    _, found = groups()
    strategy = load_strategy(METHODS["fedper"])(groups=found)
    names = dict.fromkeys((*found.head, *found.other))
    assert set(strategy.shared(names)) == {  # type: ignore[attr-defined]
        "body.weight",
        "body.bias",
        "middle.weight",
        "middle.bias",
    }
