"""FedBN: what stays by module, a round by hand, and FedAvg without normalisation."""

from typing import Any

import numpy as np
from torch import nn

from fedsuite.messages.records import ARRAYS
from fedsuite.models.groups import ParameterGroups, parameter_groups
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.personal.fedbn import FedBN
from tests.helpers import aggregated, bits, play


class Block(nn.Module):
    """A shortcut whose normalisation has no name that tells."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
        self.bnlike = nn.Linear(1, 2)
        self.group = nn.GroupNorm(1, 1)


def test_layers_are_known_by_their_type() -> None:
    groups = parameter_groups(Block())
    kept = {
        f"shortcut.1.{name}"
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert set(groups.normalisation) == kept
    strategy: Any = FedBN(groups=groups)
    assert strategy.shares(groups) == set(Block().state_dict()) - kept


def test_golden_round() -> None:
    """Equal numbers of examples: 1 and 3 give 2, and the scale stays where it was."""
    groups = ParameterGroups(head=(), other=("w", "scale"), normalisation=("scale",))
    arrays = {"w": np.zeros(1), "scale": np.full(1, 5.0)}
    replies = (
        ClientReply(k, {ARRAYS: {"w": np.array([w])}}, {}, 10) for k, w in ((0, 1), (1, 3))
    )
    found = aggregated(FedBN(groups=groups), arrays, replies)
    assert found is not None
    assert {name: array.tolist() for name, array in found.items()} == {
        "w": [2.0],
        "scale": [5.0],
    }


def test_without_normalisation_it_is_fedavg() -> None:
    keys = {"model": "mlp", "hidden_width": 16, "partitioner": "dirichlet"}
    plain = play(method="fedavg", **keys).arrays[-1]
    assert bits(play(method="fedbn", **keys).arrays[-1]) == bits(plain)
