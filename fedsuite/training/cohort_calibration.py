"""How long a client's step takes alone and in cohorts, on this machine."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import torch
from torch import nn

from fedsuite.data import Split
from fedsuite.training.cohort_steps import BatchedHook, Training, train_together
from fedsuite.training.loop import (
    TrainingOptions,
    fewest_rows,
    make_optimizer,
    mini_batches,
    run_steps,
)
from fedsuite.training.losses import cross_entropy
from fedsuite.training.stacked import StackedNetwork, stacked_network

SIZES = (10, 50, 100)
"""Sizes that are tried, up to the number of clients."""

MOST_BYTES = 1 << 30
"""Bytes of stacked arrays, gradients and optimiser beyond which a size is not tried."""

_COPIES = 4
_STEPS = 5
_REPEATS = 5


def step_seconds(
    model: nn.Module, data: Sequence[Split], options: TrainingOptions
) -> Mapping[int, float]:
    """Return the seconds of a client's step by size of cohort; 1 is alone.

    Parameters
    ----------
    model
        The network; its arrays are as before afterwards.
    data
        Rows of clients, on the model's device: of as many as the largest cohort may have.
    options
        How they train.
    """
    clients = [_training(model, split, options) for split in data if len(split)]
    if not clients:
        return {1: 0.0}
    before = {name: array.clone() for name, array in clients[0].arrays.items()}
    held = _COPIES * sum(array.nbytes for array in before.values())
    most = min(len(clients), max(SIZES), MOST_BYTES // held)
    network = stacked_network(model)
    # Of several, whose rows the processor's cache does not hold.
    works = {1: partial(_alone, clients[: SIZES[0]])}
    for size in sorted({*SIZES, most}):
        if 1 < size <= most:
            works[size] = partial(_together, network, clients[:size])
    clock = time.perf_counter if data[0].features.is_cuda else time.process_time
    found: dict[int, list[float]] = {size: [] for size in works}
    # In turns, for the machine may have other work meanwhile.
    for _ in range(_REPEATS):
        for size, work in works.items():
            began = clock()
            steps = work()
            found[size].append((clock() - began) / steps)
    clients[0].arrays = before
    clients[0].put_back()
    return {size: min(seconds) for size, seconds in found.items()}


def _training(model: nn.Module, data: Split, options: TrainingOptions) -> Training:
    fewest = fewest_rows(model, data, len(data), options)
    batches = mini_batches(len(data), options, torch.Generator(), fewest)
    some = list(islice(batches, _STEPS))
    return Training(model, data, some, options, 1, BatchedHook(), lambda _, step: None)


def _alone(clients: Sequence[Training]) -> int:
    """Train clients as outside a cohort; return the number of steps."""
    for client in clients:
        optimizer = make_optimizer(client.model, client.options, client.server_round)
        batches = iter(client.batches)
        run_steps(client.model, client.data, batches, optimizer, cross_entropy)
    return sum(len(client.batches) for client in clients)


def _together(network: StackedNetwork, clients: Sequence[Training]) -> int:
    """Train a cohort; return the number of steps of all its clients."""
    train_together(network, clients)
    return sum(len(client.batches) for client in clients)
