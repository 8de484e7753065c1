"""Statistics are averaged as they come: no rate, momentum or method steps or mixes them."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_record
from fedsuite.messages.statistics import buffers_declared, is_statistic, is_variance
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
from fedsuite.workarounds.identity import flower_identity
from tests.rounds.plain_app import final, plain_app, run_plain

SENT = {
    "w": np.zeros(2, np.float32),
    "bn.running_var": np.full(2, 4.0, np.float32),
    "bn.num_batches_tracked": np.array(7, np.int64),
    "own_variance": np.full(2, 4.0, np.float32),
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
        "own_variance": arrays["own_variance"] * np.float32(0.3),
    }, METRICS


@pytest.mark.parametrize("name", STEPPING)
def test_they_are_the_clients_mean(name: str) -> None:
    made = STEPPING[name](buffers=["own_variance"])
    made.first = FirstExchanges("any client serves", FedAvg.NEEDS_OF_CLIENT)
    result = run_plain(made, plain_app(shrinking), SENT, 4, num_rounds=3)
    assert not made.reports["train"].rejections
    arrays = final(result)
    for variance in ("bn.running_var", "own_variance"):
        assert arrays[variance] == pytest.approx([4 * 0.3**3] * 2, rel=1e-5)
    assert arrays["bn.num_batches_tracked"] == 7 + 3 * 5
    assert arrays["w"].all()


@pytest.mark.parametrize(
    "name",
    [
        "bn.running_mean",
        "0/bn.running_var",
        "model/batch_normalization_1/moving_mean",
        "batch_normalization/moving_variance:0",
        "['batch_stats']['BatchNorm_0']['var']",
        "batch_stats/BatchNorm_0/mean",
        "running_var",
    ],
)
def test_names_of_torch_keras_and_flax_are_known(name: str) -> None:
    assert is_statistic(name, SENT["w"])
    assert is_variance(name) == ("_var" in name)


@pytest.mark.parametrize("name", ["", "w", "moving", "my_running_mean", "mean", "[]", "0"])
def test_other_names_are_those_of_parameters(name: str) -> None:
    assert not is_statistic(name, SENT["w"]) and not is_variance(name)
    assert is_statistic(name, np.array([1]))


def trained_beside(model: dict[str, Any], **given: Any) -> dict[str, Any]:
    """Return arrays whose first is trained and whose second shrinks, after two rounds."""

    def train(number: int, arrays: Any) -> Any:
        first, second = arrays.values()
        return dict(
            zip(arrays, (first - 1, second * np.float32(0.3)), strict=True)
        ), METRICS

    made = FedAvg(**given)
    result = run_plain(made, plain_app(train), model, 3, num_rounds=2)
    assert not made.reports["train"].rejections
    return final(result)


STEPS: list[dict[str, Any]] = [
    {"server_learning_rate": 0.5},
    {"server_learning_rate": 3.0},
    {"server_optimizer": "adam", "server_adaptive_rate": 4.0},
    {"server_optimizer": "yogi", "server_adaptive_rate": 4.0},
    {"server_optimizer": "adagrad", "server_adaptive_rate": 4.0},
    {"server_momentum": 0.9},
    {"fedvarp": True},
]
LIST = {"0": np.zeros(2, np.float32), "1": np.full(2, 4.0, np.float32)}


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("buffers", [[1], ["1"], (0, 1)], ids=str)
def test_buffers_are_named_by_position_too(buffers: Any, step: dict[str, Any]) -> None:
    first, second = trained_beside(LIST, buffers=buffers, **step).values()
    assert second == pytest.approx([4 * 0.3**2] * 2)
    if 0 in buffers:
        assert first == pytest.approx([-2.0] * 2)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_what_no_client_has_below_0_stays_so_where_nobody_names_it(step: Any) -> None:
    first, second = trained_beside(LIST, **step).values()
    assert (second >= 0).all() and (first < 0).all()
    if step.get("server_learning_rate") == 3.0:
        assert second == pytest.approx([4 * 0.3**2] * 2)


def test_what_is_negative_anywhere_is_stepped_as_ever() -> None:
    beyond = {"server_learning_rate": 3.0}
    mixed = np.array([-4.0, 4.0], np.float32)
    assert trained_beside({**LIST, "1": mixed}, **beyond)["1"] == pytest.approx(
        mixed * (1 - 3 * 0.7) ** 2
    )
    # Who names the buffers says that the others are parameters.
    assert trained_beside(LIST, buffers=(), **beyond)["1"] == pytest.approx(
        LIST["1"] * (1 - 3 * 0.7) ** 2
    )


@pytest.mark.parametrize("buffers", [[2], ["2"], [-1], ["running"]], ids=str)
def test_a_buffer_that_the_model_lacks_is_refused(buffers: Any) -> None:
    with pytest.raises(ConfigError, match=r"^keyword buffers = '.*no such array: give"):
        trained_beside(LIST, buffers=buffers)


def test_buffers_are_known_in_a_loop_of_the_apps_own() -> None:
    made = FedAvg(server_learning_rate=2.0, buffers=["moving_variance_of_mine"])
    arrays = {"moving_variance_of_mine": np.full(2, 4.0, np.float32)}

    def train(number: int, arrays: Any) -> Any:
        return {name: array * np.float32(0.3) for name, array in arrays.items()}, METRICS

    with flower_identity():
        grid = LocalGrid(plain_app(train), 3)
        asked = made.configure_train(1, to_record(arrays), ConfigRecord(), grid)
        new, _ = made.aggregate_train(1, grid.send_and_receive(asked))
    assert new is not None
    assert new["moving_variance_of_mine"].numpy() == pytest.approx([1.2, 1.2])


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
