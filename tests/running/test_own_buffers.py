"""Runs of a network with statistics, masks, codes and empty buffers of its own."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from fedsuite.core.registry import METHODS
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment
from fedsuite.strategies import load_strategy
from tests.effects.cases import WRAPPED
from tests.effects.runs import base, did, refused_replies


class Buffered(nn.Module):
    """A network whose buffers are of all kinds."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(input_shape), 16)
        self.head = nn.Linear(16, num_classes)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), -math.inf), 1))
        self.register_buffer("none", torch.zeros(0))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("codes", torch.sin(torch.arange(16.0)))
        self.register_buffer("moving_mean", torch.zeros(16))
        self.register_buffer("moving_variance", torch.full((16,), 4.0))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = (self.first(inputs.flatten(1)) + self.codes).reshape(-1, 4, 4)
        hidden = torch.einsum("ij,bjk->bik", torch.softmax(self.mask, 1), hidden)
        hidden = hidden.reshape(-1, 16)
        if self.training:
            with torch.no_grad():
                self.moving_mean.lerp_(hidden.mean(0), 0.9)
                self.moving_variance.lerp_(hidden.var(0, unbiased=False), 0.9)
        centred = (hidden - self.moving_mean) / (self.moving_variance + 1e-5).sqrt()
        scores: Tensor = self.head(torch.relu(centred) * self.scale)
        return scores


CONSTANT = ("mask", "none", "flags", "count", "scale", "codes")


def finished(folder: Path, method: str, **keys: Any) -> tuple[dict[str, Any], list[Any]]:
    """Run a method on the network; return the last model and the rounds."""
    values = {
        "method": method,
        "model": f"{__name__}:Buffered",
        "num-clients": 3,
        "num-rounds": 3,
        "batch-size": 50,
        "report": False,
        **{name.replace("_", "-"): value for name, value in keys.items()},
    }
    strategy = load_strategy(METHODS[method])
    if strategy.takes("public_rows"):
        values["public-size"] = 40
    if strategy.takes("validation"):
        values["server-validation-fraction"] = 0.1
    run_local(Experiment.from_values(values), folder / "run")
    lines = (folder / "run" / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    model = folder / "run" / "model.safetensors"
    return (load_file(model) if model.exists() else {}), rounds


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedavg", {"server_learning_rate": 2.0}),
        ("scaffold", {"server_learning_rate": 2.0}),
        ("feddyn", {}),
        ("fedeba", {"server_learning_rate": 2.0}),
        ("qffl", {}),
        ("cgsv", {}),
        ("cffl", {}),
        ("fedave", {}),
        ("focus", {}),
        ("fedem", {}),
        ("ifca", {}),
        ("feddf", {}),
        ("fedavg", {"server_momentum": 0.9}),
        ("fedavg", {"attack": "scale"}),
        ("focus", {"attack": "sign-flip"}),
        ("fedavg", {"attack": "ipm"}),
    ],
)
def test_no_reply_is_lost_and_constants_stay(
    method: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    model, rounds = finished(tmp_path, method, **keys)
    assert [row["replies_rejected"] for row in rounds] == [0, 0, 0]
    # FedDF's server has all networks' arrays, each under its network's number.
    arrays = {name.rpartition("/")[2]: array for name, array in model.items()}
    first = Buffered((1, 8, 8), 10)
    for name in CONSTANT:
        assert np.array_equal(arrays[name], getattr(first, name).numpy()), name
    assert (arrays["moving_variance"] >= 0).all()


def test_liars_lie_behind_a_wrapper_of_their_client_too() -> None:
    values = {**base("fedavg"), **WRAPPED, "attack": "sign-flip"}
    assert refused_replies(did(values)) == 0
