"""Client of FCCL: correlates its outputs with the mean, and stays near earlier models."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    LOGITS,
    MEAN_OUTPUTS,
    MetricValue,
    Reply,
    Request,
    Told,
    TrainingSummary,
    load_arrays,
    model_arrays,
)
from fedsuite.clients.distillation.public_exchange import PublicExchangeClient
from fedsuite.models.distillation import kl_divergence

PREVIOUS, PRETRAINED = "previous", "pretrained"
CONSTANT_COLUMNS = "constant-columns"
PRETRAIN_STEPS = "pretrain-steps"


def constant_columns(logits: Tensor) -> Tensor:
    """Return which classes have a variance of 0 over the batch, ``[classes]``.

    A variance too small for a number counts as 0.
    """
    same = logits.amax(dim=0) == logits.amin(dim=0)
    return same | ((logits - logits.mean(dim=0)).square().sum(dim=0) == 0)


def standardise(logits: Tensor, *, unbiased: bool = True) -> Tensor:
    """Return (logits - mean) / std over the batch, class by class.

    ``logits`` are ``[batch, classes]``, of at least 2 rows. Constant classes are 0, without
    a gradient. The variance is over batch - 1 where it is ``unbiased``, else over the
    batch.
    """
    constant = constant_columns(logits.detach())
    centred = logits - logits.mean(dim=0)
    count = len(logits) - 1 if unbiased else len(logits)
    variance = centred.square().sum(dim=0) / count
    # Before the root, whose slope at 0 is infinite.
    std = torch.where(constant, torch.ones_like(variance), variance).sqrt()
    return torch.where(constant, torch.zeros_like(centred), centred / std)


def cross_correlation(logits: Tensor, target: Tensor, *, unbiased: bool = True) -> Tensor:
    """Return C, ``[classes, classes]``: rows are own classes, columns the target's.

    No gradient flows into the target.
    """
    own = standardise(logits, unbiased=unbiased)
    other = standardise(target.detach(), unbiased=unbiased)
    return own.T @ other / len(logits)


def correlation_loss(
    logits: Tensor, target: Tensor, off_diagonal: float = 0.0051, *, unbiased: bool = True
) -> Tensor:
    """Return sum_k (C_kk - 1)^2 + off_diagonal sum_{k != j} (C_kj + 1)^2.

    See :func:`cross_correlation` and :func:`standardise`.
    """
    correlations = cross_correlation(logits, target, unbiased=unbiased)
    different = ~torch.eye(len(correlations), dtype=torch.bool, device=correlations.device)
    same = (correlations.diagonal() - 1).square().sum()
    return same + off_diagonal * (correlations + 1)[different].square().sum()


def with_previous(mean: Tensor, own: Tensor, previous: Tensor, num_clients: int) -> Tensor:
    """Return the mean over N clients with previous outputs in place of the own ones."""
    return mean - (own - previous) / num_clients


class FCCLClient(PublicExchangeClient):
    """Keeps two teachers: the model of the last local phase, and a pre-trained one."""

    SENDS: ClassVar[frozenset[str]] = PublicExchangeClient.SENDS | {
        CONSTANT_COLUMNS,
        PRETRAIN_STEPS,
    }
    fccl_off_diagonal = Told(float)
    fccl_std = Told(str)
    fccl_target = Told(str)
    fccl_pretrain_epochs = Told(int)
    _teachers: Sequence[nn.Module] = ()
    _pretrain_steps: int | None = None

    @override
    def before_local_phase(self, request: Request) -> None:
        self._teachers, self._pretrain_steps = (), None
        epochs = self.fccl_pretrain_epochs
        if epochs:
            self._pretrain_steps = 0
            if not self._kept(PRETRAINED):
                longer = replace(self.training, local_epochs=epochs, local_steps=0)
                summary = self.train_locally(request, "pretraining", training=longer)
                self._pretrain_steps = summary.num_steps
                self._keep(PRETRAINED)
        if not self._kept(PREVIOUS):
            self._keep(PREVIOUS)
        names = (PREVIOUS, PRETRAINED)
        self._teachers = [self._teacher(name) for name in names if self._kept(name)]

    @override
    def after_local_phase(self, request: Request) -> None:
        self._teachers = ()
        self._keep(PREVIOUS)
        self.memory.pop(CONSTANT_COLUMNS, None)

    @override
    def train_metrics(self, summary: TrainingSummary) -> dict[str, MetricValue]:
        metrics = super().train_metrics(summary)
        if self._pretrain_steps is not None:
            metrics[PRETRAIN_STEPS] = self._pretrain_steps
        return metrics

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        logits = model(features)
        loss = self.loss_of_logits(logits, labels)
        for teacher in self._teachers:
            with torch.no_grad():
                taught = teacher(features)
            loss = loss + self.teaching(logits, taught, labels)
        return loss

    def teaching(self, logits: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of one teacher."""
        return kl_divergence(logits, taught)

    @override
    def transfer_loss(
        self, request: Request, step: int, outputs: Mapping[str, Tensor]
    ) -> Tensor | None:
        if self.num_responders < 2:
            return None
        logits, target = outputs[LOGITS], self.received(request, MEAN_OUTPUTS)
        if self.fccl_target == "others-and-previous":
            with torch.no_grad():
                previous = self._teacher(PREVIOUS)(self.public_features(request, step))
            target = with_previous(target, logits.detach(), previous, self.num_responders)
        self._count_constant(logits.detach(), target)
        weight, unbiased = self.fccl_off_diagonal, self.fccl_std == "unbiased"
        return correlation_loss(logits, target, weight, unbiased=unbiased)

    @override
    def on_transfer(self, request: Request) -> Reply:
        reply = super().on_transfer(request)
        if CONSTANT_COLUMNS not in self.memory:
            return reply
        count = int(self.memory[CONSTANT_COLUMNS])
        return Reply(reply.arrays, {**reply.metrics, CONSTANT_COLUMNS: count})

    def _count_constant(self, logits: Tensor, target: Tensor) -> None:
        lacking = constant_columns(logits) | constant_columns(target)
        before = self.memory.get(CONSTANT_COLUMNS, np.array(0))
        self.memory[CONSTANT_COLUMNS] = np.array(int(before) + int(lacking.sum()))

    def _keep(self, name: str) -> None:
        """Remember the model as it is, buffers included."""
        held = model_arrays(self.model)
        self.memory |= {f"{name}/{key}": array for key, array in held.items()}

    def _kept(self, name: str) -> dict[str, Any]:
        """Return the arrays of a remembered model; empty where there is none."""
        prefix = f"{name}/"
        return {
            key.removeprefix(prefix): array
            for key, array in self.memory.items()
            if key.startswith(prefix)
        }

    def _teacher(self, name: str) -> nn.Module:
        """Return a copy of a remembered model, in evaluation mode."""
        teacher = copy.deepcopy(self.model).requires_grad_(False)
        load_arrays(teacher, self._kept(name))
        return teacher.eval()
