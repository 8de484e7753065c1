"""Client of FedSAC: trains a submodel, and once the whole model alone."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ALONE,
    ARRAYS,
    HELD,
    Arrays,
    FederatedClient,
    Reply,
    Request,
    Told,
    load_arrays,
    model_arrays,
)


class FedSACClient(FederatedClient):
    """Trains the neurons that it was sent; absent ones get no gradient.

    The record ``held`` says which rows of an array are there; other arrays are whole.
    """

    ACTIONS: ClassVar[Mapping[str, str]] = {**FederatedClient.ACTIONS, ALONE: "on_alone"}

    alone_epochs = Told(int)
    _held: Mapping[str, Tensor] = {}

    @override
    def on_train(self, request: Request) -> Reply:
        self._held = self._tensors(request.arrays.get(HELD, {}))
        try:
            return super().on_train(request)
        finally:
            self._held = {}

    def on_alone(self, request: Request) -> Reply:
        """Train the received model for ``alone-epochs`` passes, at the first rate."""
        received = request.arrays[ARRAYS]
        load_arrays(self.model, received)
        alone = self.training.at_one_rate(local_epochs=self.alone_epochs, local_steps=0)
        summary = self.train_locally(request, "alone-batches", training=alone)
        trained = model_arrays(self.model, received)
        return Reply({ARRAYS: trained}, self.train_metrics(summary))

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name in self._held and parameter.grad is not None:
                parameter.grad.mul_(self._held[name])

    def _tensors(self, held: Arrays) -> dict[str, Tensor]:
        """Return the masks in a shape that fits the parameters."""
        return {
            name: torch.tensor(held[name])
            .to(parameter.device, parameter.dtype)
            .reshape(-1, *[1] * (parameter.dim() - 1))
            for name, parameter in self.model.named_parameters()
            if name in held
        }
