"""Client of Per-FedAvg: takes its gradients one step ahead."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    FederatedClient,
    Request,
    Told,
    TrainingOptions,
    load_arrays,
)
from fedsuite.models.arrays import outputs_with


class PerFedAvgClient(FederatedClient):
    """Takes pairs of mini-batches: one to step ahead, one for the gradient there."""

    adaptation_rate = Told(float)
    _ahead: Tensor | None = None

    @override
    def mini_batches(
        self, num_examples: int, training: TrainingOptions, generator: torch.Generator
    ) -> Iterator[Tensor]:
        batches = super().mini_batches(num_examples, training, generator)
        alone = True
        for first in batches:
            second = next(batches, first if alone else None)
            if second is None:
                break
            alone, self._ahead = False, first
            yield second
        self._ahead = None

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._ahead is None or self.adaptation_rate == 0:
            return super().loss(model, features, labels)
        rows, data = self._ahead.to(labels.device), self.train_data
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        here = super().loss(model, data.features[rows], data.labels[rows])
        # A layer that no row goes through has gradient 0.
        gradients = torch.autograd.grad(
            here, list(parameters.values()), materialize_grads=True
        )
        ahead = {
            name: p - self.adaptation_rate * g
            for (name, p), g in zip(parameters.items(), gradients, strict=True)
        }

        def stepped(inputs: Tensor) -> Tensor:
            return outputs_with(model, ahead, inputs)

        return self._plain_loss(stepped, features, labels)  # type: ignore[arg-type]

    @override
    def evaluated(self, request: Request) -> nn.Module:
        load_arrays(self.model, request.arrays[ARRAYS])
        if self.adaptation_rate > 0:
            step = self.training.at_one_rate(
                local_steps=1,
                learning_rate=self.adaptation_rate,
                optimizer="sgd",
                momentum=0.0,
            )
            self.train_locally(request, "adaptation-batches", training=step)
        return self.model
