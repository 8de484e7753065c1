"""Client of FedRoD: a balanced loss for the shared model, and a personal head."""

import copy
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    FederatedClient,
    Reply,
    Request,
    load_arrays,
    make_optimizer,
    model_arrays,
    take_step,
)
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.data.specs import IGNORED
from fedsuite.models.features import with_features
from fedsuite.models.head import find_head
from fedsuite.training.scoring import prefixed


def log_counts(labels: Tensor, num_classes: int) -> Tensor:
    """Return the log of the examples of each class; minus infinity excludes a class."""
    counted = labels[labels != IGNORED]
    return torch.bincount(counted, minlength=num_classes).log()


class WithOwnHead(nn.Module):
    """A network whose logits a second head on the same features adds to."""

    def __init__(self, network: nn.Module, own_head: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.own_head = own_head

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        embeddings, logits = with_features(self.network, inputs)
        own: Tensor = self.own_head(embeddings)
        return logits + own


class FedRoDClient(FederatedClient):
    """Trains the received model on balanced losses, and a head of its own beside it."""

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    KEEPS_STATE = True
    _head: nn.Module | None = None

    @override
    def on_train(self, request: Request) -> Reply:
        self._head = self._kept(request)
        self._optimizer = make_optimizer(self._head, self.training, request.server_round)
        try:
            reply = super().on_train(request)
            stored = self.save_state(request, model_arrays(self._head))
        finally:
            self._head = None
        return Reply(reply.arrays, {**reply.metrics, **stored})

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._head is None:
            return super().loss(model, features, labels)
        embeddings, logits = with_features(model, features)
        shift = log_counts(self.train_data.labels, logits.shape[-1])
        loss = self.loss_of_logits(logits + shift, labels)
        own = self.loss_of_logits(logits.detach() + self._head(embeddings.detach()), labels)
        return loss + (own - own.detach())

    @override
    def before_step(self, model: nn.Module) -> None:
        if self._head is not None:
            take_step(self._optimizer, self.training.clip_gradient_norm)

    @override
    def on_evaluate(self, request: Request) -> Reply:
        shared = self.evaluation(super().evaluated(request)).metrics
        scores = super().on_evaluate(request).metrics
        return Reply(metrics={**scores, **prefixed("global", shared)})

    @override
    def evaluated(self, request: Request) -> nn.Module:
        return WithOwnHead(super().evaluated(request), self._kept(request))

    def _kept(self, request: Request) -> nn.Module:
        """Return the personal head, which is zero at first."""
        head = copy.deepcopy(find_head(self.model)[1])
        zero = {name: np.zeros_like(array) for name, array in model_arrays(head).items()}
        load_arrays(head, self.load_state(request) or zero)
        return head
