"""Trainings of several clients of a message: the replies of each by itself, bit for bit."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.clients import load_client
from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.registry import METHODS
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, EVALUATE, TRAIN, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.trainings import trainings, trains_as_base, trains_plainly

ROWS = (10, 1, 0, 33, 7)
PLAIN = TrainingOptions(batch_size=4, learning_rate=0.2, weight_decay=0.01)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 5))


def split(rows):
    features = torch.rand((rows, 1, 8, 8), generator=torch.Generator().manual_seed(rows))
    return Split(features, torch.arange(rows) % 5)


def asked(model, count=5, server_round=7):
    arrays = {name: array + 0.1 for name, array in model_arrays(model).items()}
    config = {"server-round": server_round}
    return [Request(TRAIN, k, {ARRAYS: arrays}, config) for k in range(count)]


@pytest.mark.parametrize(
    "options",
    [
        PLAIN,
        TrainingOptions(local_steps=3, batch_size=2, learning_rate_decay=0.9),
        TrainingOptions(local_epochs=0),
        TrainingOptions(batch_size=0, local_epochs=2),
    ],
)
def test_replies_are_those_of_the_clients(options):
    model = network()
    requests, data = asked(model), [split(rows) for rows in ROWS]
    clients = [
        FedAvgClient(model, rows, rows, training=options, client_id=k, seed=11)
        for k, rows in enumerate(data)
    ]
    alone = {k: c.answer(r) for (k, c), r in zip(enumerate(clients), requests, strict=True)}
    made = trainings(model, requests, data, options, seed=11)
    assert made.keys() == alone.keys()
    for k, reply in alone.items():
        assert made[k].metrics == reply.metrics
        for name, array in reply.arrays[ARRAYS].items():
            assert made[k].arrays[ARRAYS][name].tobytes() == array.tobytes()
    # What was received is as it was, and no reply shares memory with the network.
    assert requests[0].arrays[ARRAYS]["1.bias"][0] == model_arrays(network())["1.bias"][
        0
    ] + (np.float32(0.1))
    before = made[3].arrays[ARRAYS]["1.weight"].copy()
    with torch.no_grad():
        model[1].weight.zero_()
    assert (made[3].arrays[ARRAYS]["1.weight"] == before).all()


def test_a_client_whose_loss_is_not_finite_answers_for_itself():
    model, bad = network(), split(5)
    bad.features[0] = torch.inf
    made = trainings(model, asked(model, 3), [split(4), bad, split(6)], PLAIN, seed=0)
    assert made.keys() == {0, 2}


class Corrected(FedAvgClient):
    def before_step(self, model):
        raise NotImplementedError


class Silent(FedAvgClient):
    ACTIONS: ClassVar = {TRAIN: "on_evaluate", EVALUATE: "on_evaluate"}


def test_classes_that_train_in_their_own_way_are_asked_one_by_one():
    assert trains_as_base(FedAvgClient)
    assert not trains_as_base(Corrected) and not trains_as_base(Silent)
    own = {name for name in METHODS if not trains_as_base(load_client(METHODS[name]))}
    assert {"fedprox", "scaffold", "fedeba-plus", "fedal", "fedakd", "ditto"} <= own
    assert not {"fedavg", "fedadam"} & own


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "learning_rate": 0.001},
        {"momentum": 0.5},
        {"clip_gradient_norm": 1.0},
        {"crop_and_flip": True},
        {"loss": "focal"},
        {"decorrelation_weight": 0.1},
        {"logit_calibration": 0.5},
    ],
)
def test_options_that_need_the_client(changes):
    assert trains_plainly(network(), PLAIN)
    assert not trains_plainly(network(), TrainingOptions(**changes))


def test_networks_that_are_no_plain_chain_need_the_client():
    with_dropout = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 5))
    assert not trains_plainly(with_dropout, PLAIN)
    frozen = network()
    frozen[1].bias.requires_grad_(False)
    assert not trains_plainly(frozen, PLAIN)
