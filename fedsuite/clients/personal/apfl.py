"""Client of APFL: trains the received model, and one of its own that is mixed with it."""

import copy
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    Reply,
    Request,
    Told,
    load_arrays,
    make_optimizer,
    model_arrays,
    take_step,
)
from fedsuite.clients.personal.own_model import PersonalModelClient
from fedsuite.models.arrays import outputs_with

SHARE = "apfl-share"
"""Name of alpha in what a client keeps."""


class APFLClient(PersonalModelClient):
    """Trains the received model as FedAvg's client does, and its own model beside it."""

    SENDS: ClassVar[frozenset[str]] = PersonalModelClient.SENDS | {"apfl-share"}
    apfl_alpha = Told(float)
    apfl_adaptive = Told(bool)
    _own: nn.Module | None = None
    _share = torch.zeros(())

    @override
    def on_train(self, request: Request) -> Reply:
        self._own = self._kept(request)
        self._share.requires_grad_(self.apfl_adaptive)
        rate = self.training.learning_rate_at(request.server_round)
        self._optimizer = make_optimizer(self._own, self.training, request.server_round)
        self._share_optimizer = torch.optim.SGD([self._share], lr=rate)
        try:
            reply = super().on_train(request)
            share = self._share.detach()
            kept = {**model_arrays(self._own), SHARE: np.array(float(share))}
        finally:
            self._own = None
        stored = self.save_state(request, kept)
        return Reply(reply.arrays, {**reply.metrics, "apfl-share": float(share), **stored})

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss(model, features, labels)
        own = self._own
        if own is None or (not self.apfl_adaptive and float(self._share) == 0.0):
            return loss
        received = dict(model.named_parameters())
        mixture = {
            name: self._share * v + (1 - self._share) * received[name].detach()
            for name, v in own.named_parameters()
        }

        def mixed(inputs: Tensor) -> Tensor:
            return outputs_with(own, mixture, inputs)

        # A client reports the received model's loss, as FedAvg's does.
        other = self._plain_loss(mixed, features, labels)  # type: ignore[arg-type]
        return loss + (other - other.detach())

    @override
    def before_step(self, model: nn.Module) -> None:
        if self._own is None or not any(p.grad is not None for p in self._own.parameters()):
            return
        take_step(self._optimizer, self.training.clip_gradient_norm)
        if self._share.requires_grad:
            self._share_optimizer.step()
            self._share = self._share.detach().clamp(0.0, 1.0)

    @override
    def load_own(self, request: Request) -> None:
        own, received = self._kept(request), request.arrays[ARRAYS]
        share, kept = float(self._share), model_arrays(own)
        names = dict(own.named_parameters(remove_duplicate=False))
        mixture = {
            n: share * a + (1 - share) * received[n]
            for n, a in kept.items()
            if n in names and n in received
        }
        load_arrays(self.model, {**kept, **mixture})

    def _kept(self, request: Request) -> nn.Module:
        """Return the own model, and set its share."""
        kept = dict(self.load_state(request) or {})
        share = kept.pop(SHARE, np.array(self.apfl_alpha))
        self._share = torch.tensor(float(share), dtype=torch.float64)
        own = copy.deepcopy(self.model)
        load_arrays(own, {**self._initial, **kept})
        return own
