"""Statistics are averaged as they come: no rate, momentum or method steps or mixes them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.messages.statistics import buffers_declared, is_statistic
from fedsuite.models.arrays import buffer_names
from fedsuite.rounds.first_exchange import FirstExchanges
from fedsuite.strategies import (
    AFL,
    QFFL,
    FedAvg,
    FedEBA,
    FedFV,
    FedMGDAPlus,
    FedNova,
    PFedMe,
    PracFedEBAPlus,
)
from tests.rounds.plain_app import final, plain_app, run_plain

SENT = {
    "w": np.zeros(2, np.float32),
    "bn.running_var": np.full(2, 4.0, np.float32),
    "bn.num_batches_tracked": np.array(7, np.int64),
    "moving_variance": np.full(2, 4.0, np.float32),
}
METRICS = {
    "num-examples": 10,
    "loss-before": 1.0,
    "loss-after": 0.5,
    "num-steps": 2,
    "learning-rate": 0.1,
}
STEPPING = {
    "half": lambda **given: FedAvg(server_learning_rate=0.5, **given),
    "beyond": lambda **given: FedAvg(server_learning_rate=2.0, **given),
    "momentum": lambda **given: FedAvg(server_momentum=0.9, **given),
    "nesterov": lambda **given: FedAvg(
        server_optimizer="nesterov", server_momentum=0.9, **given
    ),
    "adam": lambda **given: FedAvg(server_optimizer="adam", **given),
    "fedvarp": lambda **given: FedAvg(fedvarp=True, **given),
    "median": lambda **given: FedAvg(
        aggregator="median", server_learning_rate=2.0, **given
    ),
    "pfedme": lambda **given: PFedMe(
        pfedme_server_step=2.0, server_learning_rate=1.5, **given
    ),
    "fednova": lambda **given: FedNova(server_learning_rate=2.0, **given),
    "fedfv": lambda **given: FedFV(**given),
    "fedmgda": lambda **given: FedMGDAPlus(fedmgda_step=3.0, **given),
    "qffl": lambda **given: QFFL(qffl_q=5.0, **given),
    "afl": lambda **given: AFL(**given),
    "fedeba": lambda **given: FedEBA(server_learning_rate=2.0, **given),
    "fedeba-median": lambda **given: FedEBA(
        aggregator="median", server_learning_rate=2.0, **given
    ),
    "prac": lambda **given: PracFedEBAPlus(server_learning_rate=2.0, theta=90.0, **given),
}


def shrinking(number: int, arrays: Any) -> Any:
    """Train to a variance of 0.3 of the sent one, alike at each client."""
    return {
        "w": arrays["w"] + np.float32(1 + number),
        "bn.running_var": arrays["bn.running_var"] * np.float32(0.3),
        "bn.num_batches_tracked": arrays["bn.num_batches_tracked"] + 5,
        "moving_variance": arrays["moving_variance"] * np.float32(0.3),
    }, METRICS


@pytest.mark.parametrize("name", STEPPING)
def test_they_are_the_clients_mean(name: str) -> None:
    made = STEPPING[name](buffers=["moving_variance"])
    made.first = FirstExchanges("any client serves", FedAvg.NEEDS_OF_CLIENT)
    result = run_plain(made, plain_app(shrinking), SENT, 4, num_rounds=3)
    assert not made.reports["train"].rejections
    arrays = final(result)
    for variance in ("bn.running_var", "moving_variance"):
        assert arrays[variance] == pytest.approx([4 * 0.3**3] * 2, rel=1e-5)
    assert arrays["bn.num_batches_tracked"] == 7 + 3 * 5
    assert arrays["w"].all()


def test_a_buffer_that_nobody_declares_is_a_parameter() -> None:
    made = FedAvg(server_learning_rate=0.5)
    arrays = final(run_plain(made, plain_app(shrinking), SENT, 4))
    assert arrays["moving_variance"] == pytest.approx([4 * 0.65] * 2)
    assert not is_statistic("moving_variance", SENT["moving_variance"])


def test_declarations_hold_inside_their_block_alone() -> None:
    array = SENT["w"]
    with buffers_declared(["a"]), buffers_declared(["b"]):
        assert is_statistic("a", array) and is_statistic("b", array)
        assert not is_statistic("w", array)
    assert not is_statistic("a", array)


class Buffered(nn.Module):
    """A network with statistics and constants of its own, and one array of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("mask", torch.zeros(2, 2))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.norm = nn.BatchNorm1d(4)


def test_the_buffers_of_a_module_are_its_declaration() -> None:
    names = {"mask", *(f"norm.{n}" for n in ("running_mean", "running_var"))}
    assert buffer_names(Buffered()) == names | {"norm.num_batches_tracked"}
