"""Client of FedProx: a proximal term in each local step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import ARRAYS, FederatedClient, Reply, Request, Told, load_arrays


class FedProxClient(FederatedClient):
    """Adds mu (w - w_t) to each gradient."""

    proximal_mu = Told(float)
    _received: Sequence[Tensor] = ()

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        self._received = [p.detach().clone() for p in self.model.parameters()]
        try:
            return super().on_train(request)
        finally:
            self._received = ()

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        if not self._received or self.proximal_mu == 0:
            return
        for parameter, received in zip(model.parameters(), self._received, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - received, alpha=self.proximal_mu)
