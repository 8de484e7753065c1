"""Evaluations of several clients at once: the replies of each by itself, bit for bit."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, EVALUATE, TRAIN, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.training.evaluation import evaluate_model, evaluate_on_each
from fedsuite.training.evaluations import evaluates_as_base, evaluations

DENSE = (nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 5))
ROWS = (10, 1, 0, 128, 129, 300, 17)


def split(rows, never_right=None):
    features = torch.rand((rows, 1, 8, 8), generator=torch.Generator().manual_seed(rows))
    return Split(features, torch.arange(rows) % 5, never_right)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(*DENSE),
        nn.Sequential(*DENSE[:1], nn.Linear(64, 5)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(), nn.Linear(72, 5)),
    ],
)
def test_scores_have_the_bits_of_each_part_by_itself(model):
    parts = [split(rows) for rows in ROWS] + [split(20, never_right=1)]
    assert evaluate_on_each(model, parts) == [evaluate_model(model, p) for p in parts]
    assert all(module.training for module in model.modules())


def test_replies_are_those_of_the_clients():
    model = nn.Sequential(*DENSE)
    arrays = {name: array + 1 for name, array in model_arrays(model).items()}
    asked = [Request(EVALUATE, k, {ARRAYS: arrays}) for k in range(len(ROWS))]
    tests = [split(rows) for rows in ROWS]
    clients = [FedAvgClient(model, data, data, client_id=k) for k, data in enumerate(tests)]
    alone = {k: c.answer(r) for (k, c), r in zip(enumerate(clients), asked, strict=True)}
    with torch.no_grad():
        model[1].weight.zero_()
    assert evaluations(model, asked, tests) == alone


class Louder(FedAvgClient):
    def evaluation(self):
        raise NotImplementedError


class Teaching(FedAvgClient):
    ACTIONS: ClassVar = {TRAIN: "on_train", EVALUATE: "on_train"}


def test_classes_that_evaluate_in_their_own_way_are_asked_one_by_one():
    assert evaluates_as_base(FedAvgClient)
    assert not evaluates_as_base(Louder)
    assert not evaluates_as_base(Teaching)
