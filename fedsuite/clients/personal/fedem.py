"""Client of FedEM: trains each model on what it explains of the client's rows."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import (
    SHARES,
    Arrays,
    Reply,
    Request,
    TrainingOptions,
    Vector,
    load_arrays,
    outputs_over,
    refuse_sequences,
)
from fedsuite.clients.personal.several_models import (
    MixtureClient,
    e_step,
    received_models,
    shares_before,
)


def mean_shares(log_responsibilities: Vector, log_shares: Vector) -> Vector:
    """Return the logarithms of the mean responsibilities; without rows, those of before.

    Parameters
    ----------
    log_responsibilities
        Logarithms of s, shape ``[rows, models]``.
    log_shares
        Logarithms of pi before, ``[models]``.
    """
    count = len(log_responsibilities)
    if count == 0:
        return log_shares
    log_means: Vector = np.logaddexp.reduce(log_responsibilities, axis=0) - np.log(count)
    return log_means


class FedEMClient(MixtureClient):
    """Weighs each row of each model's loss by how far the model explains it."""

    _weights: Tensor | None = None
    """Responsibilities of the models for all rows, while several models train."""
    _batch = torch.zeros(0, dtype=torch.int64)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refuse_sequences(self.train_data.labels, "method fedem: its responsibilities need")

    @override
    def on_train(self, request: Request) -> Reply:
        models = received_models(request)
        before = shares_before(models, self.load_state(request))
        log_responsibilities = e_step(before, self._row_losses(models))
        shares = mean_shares(log_responsibilities, before)
        if len(models) > 1:
            device = self.train_data.labels.device
            self._weights = torch.tensor(
                np.exp(log_responsibilities), dtype=torch.float32, device=device
            )
        try:
            trained, summary = self.train_all(request, shares)
        finally:
            self._weights = None
        stored = self.save_state(request, {SHARES: shares})
        return Reply(trained, {**self.train_metrics(summary), **stored})

    @override
    def updated_shares(self, models: Mapping[str, Arrays], log_shares: Vector) -> Vector:
        return mean_shares(e_step(log_shares, self._row_losses(models)), log_shares)

    @override
    def mini_batches(
        self, num_examples: int, training: TrainingOptions, generator: torch.Generator
    ) -> Iterator[Tensor]:
        for self._batch in super().mini_batches(num_examples, training, generator):
            yield self._batch

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._weights is None:
            return super().loss(model, features, labels)
        losses = functional.cross_entropy(model(features), labels, reduction="none")
        weights = self._weights[self._batch.to(labels.device), self._number]
        return (weights * losses).mean()

    def _row_losses(self, models: Mapping[str, Arrays]) -> Vector:
        """Return the cross-entropy of each row under each model, ``[rows, models]``."""
        losses = np.zeros((len(self.train_data), len(models)))
        for number, model in enumerate(models.values()):
            load_arrays(self.model, model)
            parts = [
                functional.cross_entropy(outputs, labels, reduction="none")
                for outputs, labels in outputs_over(self.model, self.train_data)
            ]
            if parts:
                losses[:, number] = torch.cat(parts).cpu().numpy()
        return losses
