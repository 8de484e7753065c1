"""Client of federated distillation: imitates the others' mean output for each label."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import Request, Told, outputs_over
from fedsuite.clients.distillation.class_tables import ClassTableClient


class FDClient(ClassTableClient):
    """Adds the distance to the others' mean output for the label to its loss."""

    fd_weight = Told(float)
    fd_space = Told(str)
    fd_loss = Told(str)
    fd_pass = Told(str)

    @override
    def row_width(self, request: Request) -> int:
        return self.num_classes

    @override
    def after_training(self, request: Request) -> None:
        if self.fd_pass == "end":
            for logits, labels in outputs_over(self.model, self.train_data):
                self._gather(logits, labels)

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        logits = model(features)
        loss = self.loss_of_logits(logits, labels)
        if self.fd_pass == "online":
            self._gather(logits.detach(), labels)
        if self.targets is None or self.fd_weight == 0:
            return loss
        rows, present = self.targets
        phi = regulariser(
            logits, rows[labels], present[labels], self.fd_space, self.fd_loss
        )
        return loss + self.fd_weight * phi

    def _gather(self, logits: Tensor, labels: Tensor) -> None:
        self.gathered.add(outputs(logits, self.fd_space), labels)


def outputs(logits: Tensor, space: str) -> Tensor:
    """Return the outputs to average: softmax outputs in space ``prob``, else the logits."""
    return functional.softmax(logits, dim=1) if space == "prob" else logits


def regulariser(
    logits: Tensor, targets: Tensor, present: Tensor, space: str, kind: str
) -> Tensor:
    """Return phi, the mean over a batch, in which samples without a target count as 0.

    ``targets`` are mean outputs ``[batch, classes]`` of the space ``prob`` or ``logit``;
    ``present`` ``[batch]`` says which samples have one. ``kind`` is ``ce``, ``kl`` or
    ``mse``.
    """
    targets = targets.to(logits)
    if kind == "mse":
        terms = (outputs(logits, space) - targets).square().mean(dim=1)
    else:
        probabilities = targets if space == "prob" else functional.softmax(targets, dim=1)
        log_p = functional.log_softmax(logits, dim=1)
        terms = -(probabilities * log_p).sum(dim=1)
        if kind == "kl":
            terms = terms + torch.special.xlogy(probabilities, probabilities).sum(dim=1)
    return torch.where(present, terms, 0.0).sum() / len(logits)
