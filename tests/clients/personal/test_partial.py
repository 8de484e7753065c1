"""Clients of methods with a personal part: what stays frozen, and leaves no trace."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.clients.personal.fedrep import FedRepClient
from fedsuite.clients.personal.partial import PartialClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.strategies.personal.fedper import FedPer
from fedsuite.strategies.personal.fedrep import FedRep
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.strategies.personal.products import TWO, numbers, play, product, split


class Normalised(nn.Sequential):
    """A body with statistics, and a head with statistics of its own."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2)
        )


def test_frozen_parts_do_not_move_nor_do_their_statistics() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 2, generator=generator)
    data = Split(features, (features[:, 0] > 0).long())
    model = Normalised()
    body = ["0.weight", "0.bias", *(n for n in model.state_dict() if n.startswith("1."))]
    before = model_arrays(model)
    for head_epochs, body_epochs in ((2, 0), (0, 2)):
        load_arrays(model, before)
        options = TrainingOptions(
            local_epochs=body_epochs, batch_size=4, momentum=0.9, weight_decay=0.1
        )
        client = FedRepClient(model, data, data, training=options)
        config = {"head-epochs": head_epochs}
        received = {name: before[name] for name in body}
        reply = client.answer(Request("train", 0, {ARRAYS: received}, config))
        after = model_arrays(model)
        assert list(reply.arrays[ARRAYS]) == body
        for name, array in after.items():
            moved = array.tobytes() != before[name].tobytes()
            assert moved == ((name in body) == (body_epochs > 0)), name
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_head_and_body_draw_from_streams_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    purposes = []
    usual = FedRepClient.train_locally

    def watch(self: Any, request: Request, purpose: str = "batches", **options: Any) -> Any:
        purposes.append(purpose)
        return usual(self, request, purpose, **options)

    monkeypatch.setattr(FedRepClient, "train_locally", watch)
    play(FedRep(**TWO), FedRepClient, 1)
    assert purposes == ["head-batches", "batches"] * 2


def test_client_without_its_numbers_says_so() -> None:
    trace = play(FedPer(**TWO), FedRepClient, 1)
    reasons = [rejection.reason for rejection in trace.reports[0].train.rejections]
    assert "the message has no number head-epochs: use the strategy" in reasons[0]


def test_clients_share_a_model_without_a_trace() -> None:
    """What another client left in the shared memory is not taken for the own part."""
    model, store = product(), MemoryStore()
    data = split(3, 2)
    clients = [PartialClient(model, data, data, client_id=k, store=store) for k in range(2)]
    with torch.no_grad():
        model[1].weight.fill_(77.0)  # type: ignore[union-attr,operator]
    body = {"0.weight": np.ones((1, 1), np.float32)}
    request = Request("evaluate", 1, {ARRAYS: body})
    clients[1].load_own(request)
    assert numbers(model_arrays(model)) == [1.0, 1.0]
