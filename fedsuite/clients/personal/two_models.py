"""Base of clients that train the received model and one of their own side by side."""

import copy
from abc import abstractmethod

from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    Reply,
    Request,
    load_arrays,
    make_optimizer,
    model_arrays,
    take_step,
)
from fedsuite.clients.personal.own_model import PersonalModelClient


class TwoModelsClient(PersonalModelClient):
    """Trains both models on the same mini-batches; :meth:`losses` is the method's own."""

    _own: nn.Module | None = None

    @abstractmethod
    def losses(
        self, received: nn.Module, own: nn.Module, features: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of both, each without a gradient to the other model."""

    @override
    def on_train(self, request: Request) -> Reply:
        own = copy.deepcopy(self.model).train()
        load_arrays(own, {**self._initial, **(self.load_state(request) or {})})
        self._own = own
        self._optimizer = make_optimizer(own, self.training, request.server_round)
        try:
            reply = super().on_train(request)
        finally:
            self._own = None
        stored = self.save_state(request, model_arrays(own))
        return Reply(reply.arrays, {**reply.metrics, **stored})

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._own is None:
            return super().loss(model, features, labels)
        loss, own = self.losses(model, self._own, features, labels)
        return loss + (own - own.detach())

    @override
    def before_step(self, model: nn.Module) -> None:
        if self._own is not None:
            take_step(self._optimizer, self.training.clip_gradient_norm)
