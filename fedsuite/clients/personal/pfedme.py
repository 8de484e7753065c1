"""Client of pFedMe: a personal model, and a received one that follows it."""

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    Reply,
    Request,
    Told,
    TrainingOptions,
    load_arrays,
    model_arrays,
)
from fedsuite.clients.personal.own_model import PersonalModelClient


class PFedMeClient(PersonalModelClient):
    """Trains a personal model from the received one, and pulls the latter after it."""

    pfedme_lambda = Told(float)
    pfedme_learning_rate = Told(float)
    pfedme_inner_steps = Told(int)
    _received: list[Tensor] | None = None

    @override
    def mini_batches(
        self, num_examples: int, training: TrainingOptions, generator: torch.Generator
    ) -> Iterator[Tensor]:
        for batch in super().mini_batches(num_examples, training, generator):
            yield from repeat(batch, self.pfedme_inner_steps)

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        received = [p.detach().clone() for p in self.model.parameters()]
        self._received = received
        try:
            reply = super().on_train(request)
        finally:
            self._received = None
        stored = self.save_state(request, model_arrays(self.model))
        with torch.no_grad():
            for parameter, moved in zip(self.model.parameters(), received, strict=True):
                parameter.copy_(moved)
        sent = {ARRAYS: model_arrays(self.model, request.arrays[ARRAYS])}
        return Reply(sent, {**reply.metrics, **stored})

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        for parameter, near in zip(model.parameters(), self._received or (), strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - near, alpha=self.pfedme_lambda)

    @torch.no_grad()
    @override
    def after_step(self, model: nn.Module, step: int) -> None:
        if step % self.pfedme_inner_steps:
            return
        rate = self.pfedme_learning_rate * self.pfedme_lambda
        for parameter, near in zip(model.parameters(), self._received or (), strict=False):
            near.add_(parameter - near, alpha=rate)
