"""The trainings of several clients that train one model plainly, one after the other.

Small clients cost more by what surrounds their steps than by these. What is the same for
all clients of a message is done once here; each reply has the bits of the client's own.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from torch import nn

from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, TRAIN, Reply, Request
from fedsuite.models.arrays import named_tensors
from fedsuite.training.base import FederatedClient
from fedsuite.training.dense_gradients import plain_layers
from fedsuite.training.loop import (
    TrainingOptions,
    make_optimizer,
    mini_batches,
    run_steps,
    train_metrics,
)
from fedsuite.training.losses import cross_entropy

_HOOKS = (
    "__init__",
    "answer",
    "act",
    "protect",
    "on_train",
    "train_locally",
    "training_loss",
    "known_loss",
    "loss",
    "layer_stream",
    "mini_batches",
    "make_optimizer",
    "before_step",
    "after_step",
    "train_metrics",
)


def trains_as_base(kind: type[FederatedClient]) -> bool:
    """Return whether a class trains as its base class does."""
    same = all(getattr(kind, hook) is getattr(FederatedClient, hook) for hook in _HOOKS)
    return same and kind.TRAINED_BY == TRAIN and kind.ACTIONS.get(TRAIN) == "on_train"


def trains_plainly(model: nn.Module, options: TrainingOptions) -> bool:
    """Return whether a training is steps of SGD on the cross-entropy, and draws nothing.

    Such an optimiser keeps nothing from one client to the next, and dense networks have no
    layer that draws.
    """
    changed = options.changes_images or options.clip_gradient_norm
    terms = options.decorrelation_weight or options.logit_calibration
    sgd = options.optimizer == "sgd" and options.momentum == 0
    plain = sgd and options.loss == "cross-entropy" and not changed and not terms
    return plain and bool(plain_layers(model))


def trainings(
    model: nn.Module,
    requests: Sequence[Request],
    data: Iterable[Split],
    options: TrainingOptions,
    seed: int,
) -> dict[int, Reply]:
    """Return what :meth:`FederatedClient.on_train` would answer, by client.

    None of a client whose loss is not finite, which is to say so itself.

    Parameters
    ----------
    model
        The clients' network, which :func:`trains_plainly`.
    requests
        Requests to train the same model.
    data
        Each client's training rows.
    options, seed
        As the clients'.
    """
    tensors = named_tensors(model)
    received = requests[0].arrays[ARRAYS]
    views = {name: tensors[name].detach().numpy() for name in received}
    server_round = requests[0].server_round
    optimizer = make_optimizer(model, options, server_round)
    replies = {}
    for request, rows in zip(requests, data, strict=True):
        for name, array in received.items():
            np.copyto(views[name], array)
        stream = torch_stream(seed, "batches", server_round, request.client_id)
        batches = mini_batches(len(rows), options, stream)
        summary = run_steps(model, rows, batches, optimizer, cross_entropy)
        if math.isfinite(summary.loss):
            trained = {name: view.copy() for name, view in views.items()}
            replies[request.client_id] = Reply(
                {ARRAYS: trained}, train_metrics(len(rows), summary)
            )
    return replies
