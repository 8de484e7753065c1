"""A last mini-batch of one row joins the one before, where the network needs two."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

from fedsuite.clients.distillation.fedproto import FedProtoClient
from fedsuite.core.errors import RunError
from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.messages.records import TRAIN, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions, fewest_rows, mini_batches, num_steps


def normed() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def rows(count: int) -> Split:
    stream = torch.Generator().manual_seed(1)
    return Split(torch.rand(count, 3, generator=stream), torch.arange(count) % 2)


def sizes(count: int, fewest: int, **options: int) -> list[int]:
    given = TrainingOptions(**options)
    found = list(mini_batches(count, given, torch_stream(0, "batches"), fewest))
    assert len(found) == num_steps(count, given, fewest)
    return [len(batch) for batch in found]


@pytest.mark.parametrize(
    ("count", "size", "wanted"),
    [
        (7, 3, [3, 4]),
        (8, 3, [3, 3, 2]),
        (6, 3, [3, 3]),
        (4, 3, [4]),
        (3, 2, [3]),
        (5, 0, [5]),
        (2, 0, [2]),
        (2, 9, [2]),
        (1, 0, []),
        (1, 9, []),
        (0, 3, []),
    ],
)
def test_sizes_of_a_pass(count: int, size: int, wanted: list[int]) -> None:
    assert sizes(count, 2, batch_size=size) == wanted
    assert sizes(count, 2, batch_size=size, local_epochs=2) == wanted * 2


def test_as_many_steps_as_are_asked_for() -> None:
    assert sizes(7, 2, batch_size=3, local_steps=5) == [3, 4, 3, 4, 3]
    assert sizes(1, 2, batch_size=3, local_steps=5) == []


def test_a_pass_has_every_row_once_in_the_order_of_one_that_needs_no_joining() -> None:
    how = TrainingOptions(batch_size=3, local_epochs=2)
    one, two = (list(mini_batches(7, how, torch_stream(0, "batches"), n)) for n in (1, 2))
    assert list(chain(*one)) == list(chain(*two))
    assert sorted(chain(*two[:2])) == list(range(7))


@pytest.mark.parametrize(
    ("count", "size", "wanted"),
    [
        (7, 3, 2),
        (8, 3, 1),
        (6, 3, 1),
        (1, 3, 2),
        (1, 1, 2),
        (1, 0, 2),
        (5, 0, 1),
        (0, 1, 1),
    ],
)
def test_two_rows_are_needed_where_one_would_come(
    count: int, size: int, wanted: int
) -> None:
    how = TrainingOptions(batch_size=size)
    assert fewest_rows(normed(), rows(count), count, how) == wanted
    plain = nn.Linear(3, 2)
    assert fewest_rows(plain, rows(count), count, how) == 1


def test_a_batch_size_of_1_is_refused_where_two_rows_are_needed() -> None:
    how = TrainingOptions(batch_size=1)
    with pytest.raises(RunError, match=r"^batch-size = 1: the network cannot train on one"):
        fewest_rows(normed(), rows(5), 5, how)
    assert fewest_rows(nn.Linear(3, 2), rows(5), 5, how) == 1


def trained(count: int, **options: Any) -> tuple[Any, dict[str, Any]]:
    how = TrainingOptions(batch_size=3, **options)
    client = FederatedClient(normed(), rows(count), rows(3), training=how)
    arrays = model_arrays(client.model)
    reply = client.answer(Request(TRAIN, 0, {"arrays": arrays}, {"server-round": 1}))
    moved = reply.arrays["arrays"]
    changed = any((moved[name] != array).any() for name, array in arrays.items())
    return changed, dict(reply.metrics)


@pytest.mark.parametrize(("count", "steps"), [(7, 2), (4, 1), (3, 1), (2, 1), (1, 0)])
def test_a_client_of_batch_normalisation_trains(count: int, steps: int) -> None:
    changed, metrics = trained(count)
    assert changed == bool(steps)
    assert (metrics["num-steps"], metrics["num-examples"]) == (steps, count)


def test_fedproto_gathers_in_the_last_of_the_joined_passes() -> None:
    how = TrainingOptions(batch_size=3, local_epochs=2)
    client = FedProtoClient(normed(), rows(7), rows(3), training=how)
    client.before_training(Request(TRAIN, 0, {}, {}))
    assert client._gathers_after == 2
