"""Client of FedProx: a proximal term in each local step."""

from typing import Any

import torch
from torch import Tensor, nn

from fedsuite.messages.records import ARRAYS, Reply, Request
from fedsuite.models.arrays import load_arrays
from fedsuite.training.base import FederatedClient


class FedProxClient(FederatedClient):
    """Adds mu (w - w_t) to each gradient; mu comes with the message as ``proximal-mu``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._proximal_mu = 0.0
        self._received: list[Tensor] = []

    def on_train(self, request: Request) -> Reply:
        """Remember the received model, then train."""
        self._proximal_mu = request.number("proximal-mu")
        load_arrays(self.model, request.arrays[ARRAYS])
        self._received = [p.detach().clone() for p in self.model.parameters()]
        return super().on_train(request)

    @torch.no_grad()
    def before_step(self, model: nn.Module) -> None:
        """Add the gradient of the proximal term."""
        if self._proximal_mu == 0:
            return
        for parameter, received in zip(model.parameters(), self._received, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - received, alpha=self._proximal_mu)
