"""Client of FedNTD: distils the received model on the classes that are not the label."""

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import ARRAYS, FederatedClient, Reply, Request, Told, load_arrays
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.models.distillation import distillation_loss


def without_true(logits: Tensor, labels: Tensor) -> Tensor:
    """Return logits ``[batch, classes - 1]``: those of the classes that a row is not."""
    others = torch.ones_like(logits, dtype=torch.bool).scatter(1, labels[:, None], False)
    return logits[others].reshape(len(logits), -1)


class FedNTDClient(FederatedClient):
    """Adds the divergence from the received model, without the true class, to the loss."""

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    fedntd_weight = Told(float)
    fedntd_temperature = Told(float)
    _teacher: nn.Module | None = None

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        if self.fedntd_weight:
            self._teacher = copy.deepcopy(self.model).eval().requires_grad_(False)
        try:
            return super().on_train(request)
        finally:
            self._teacher = None

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._teacher is None:
            return super().loss(model, features, labels)
        logits = model(features)
        taught = without_true(self._teacher(features), labels)
        term = distillation_loss(
            without_true(logits, labels), taught, self.fedntd_temperature
        )
        return self.loss_of_logits(logits, labels) + self.fedntd_weight * term
