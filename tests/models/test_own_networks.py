"""Networks of one's own: built to the same bits, and refused in one line."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.models import build_model
from fedsuite.models.arrays import model_arrays
from tests.helpers import bits
from tests.plug_ins.fakes import installed, write_package

SOURCE = '''
"""Networks of a test."""
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedsuite.core.settings import Settings, key
from fedsuite.models import ModelSpec


class Net(nn.Module):
    """A linear layer that is drawn when inputs come, and noise of two other kinds."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.LazyLinear(num_classes))
        self.noise = nn.Parameter(torch.tensor([random.random(), np.random.rand()]).float())

    def forward(self, x):
        return self.layers(x) + self.noise.sum()


class Width(Settings):
    """Keys."""

    own_width: int = key(default=3, help="units", minimum=1)


def wide(input_shape, num_classes, own_width):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(own_width), nn.LazyLinear(num_classes))


WIDE = ModelSpec("Two layers.", "own_nets:wide", Width)


def words(input_shape, num_classes):
    return nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, num_classes))


def number(input_shape, num_classes):
    return 3


def raises(input_shape, num_classes):
    raise RuntimeError("no luck\\n  at all")


def shape(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes + 1))


def several(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(1), nn.RNN(64, num_classes))


def images(input_shape, num_classes):
    return nn.Sequential(nn.Linear(5, num_classes))


def fixed(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes).requires_grad_(False))


def double(input_shape, num_classes):
    net = Net(input_shape, num_classes)
    net.late = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    return net
'''


@pytest.fixture(autouse=True)
def nets(tmp_path: Path):
    adds = {"fedsuite.models": {"own-wide": "own_nets:WIDE", "own-number": "own_nets:np"}}
    write_package(tmp_path, "nets", adds, {"own_nets": SOURCE})
    with installed(tmp_path):
        yield


def own(name: str, seed: int = 0, **options) -> nn.Module:
    return build_model(name, (1, 8, 8), 10, seed, **options)


def test_the_same_seed_draws_the_same_bits_of_all_generators() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = bits(model_arrays(own("own_nets:Net")))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    random.seed(7), np.random.seed(7), torch.rand(3)
    assert bits(model_arrays(own("own_nets:Net"))) == first
    other = bits(model_arrays(own("own_nets:Net", seed=1)))
    assert all(other[name] != first[name] for name in first)
    assert bits(model_arrays(own("own_nets:Net", client_id=1))) != first
    assert own("own_nets:Net").training


def test_a_package_gives_its_network_keys() -> None:
    assert own("own-wide", own_width=5)[1].out_features == 5
    with pytest.raises(ConfigError, match="key own-width = 0: expected a whole"):
        own("own-wide", own_width=0)


def test_scores_per_position_are_of_words_alone() -> None:
    assert build_model("own_nets:words", (6,), 50, 0, words=True)
    with pytest.raises(ConfigError, match="cannot take a batch"):
        build_model("own_nets:words", (6,), 50, 0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own_nets:number", "returned a int: return a torch.nn.Module"),
        ("own_nets:raises", r"inputs of shape \(1, 8, 8\) and 10 classes failed .Runtime"),
        (
            "own_nets:shape",
            r"makes shape \(2, 11\) of a batch .*: return .* \(2, 10\), one",
        ),
        ("own_nets:several", "makes a tuple of a batch of shape"),
        ("own_nets:images", r"cannot take a batch of shape \(2, 1, 8, 8\) .RuntimeError"),
        ("own_nets:fixed", "has no parameter to train"),
        ("own_nets:double", "late is torch.float64: expected torch.float32"),
        ("own_nets:SOURCE", "module own_nets has no 'SOURCE'"),
        ("own_nets:np", "building it .*'module' object is not callable"),
        ("own_nots:Net", "no module 'own_nots' here: install it .* PYTHONPATH"),
        ("own-number", "own_nets:np is a module: name a class or function"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        own(name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
