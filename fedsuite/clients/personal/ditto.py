"""Client of Ditto: FedAvg's, with a personal model of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

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


class DittoClient(PersonalModelClient):
    """Trains the received model as FedAvg's client does, then its personal model.

    The message says how to train the personal model: ``ditto-lambda``,
    ``ditto-local-epochs``, ``ditto-local-steps``, ``ditto-learning-rate``.
    """

    SENDS: ClassVar[frozenset[str]] = PersonalModelClient.SENDS | {"personal-loss"}
    ditto_lambda = Told(float)
    ditto_local_epochs = Told(int)
    ditto_local_steps = Told(int)
    ditto_learning_rate = Told(float)
    _anchor: Sequence[Tensor] = ()

    def on_train(self, request: Request) -> Reply:
        """Train the received model, then the personal one; send the first, keep the other.

        Afterwards ``self.model`` is the trained global model again.
        """
        load_arrays(self.model, request.arrays[ARRAYS])
        anchor = [p.detach().clone() for p in self.model.parameters()]
        reply = super().on_train(request)
        trained = model_arrays(self.model)
        self.load_own(request)
        with self._personal(anchor):
            summary = self.train_locally(request, purpose="personal-batches")
        stored = self.save_state(request, model_arrays(self.model))
        load_arrays(self.model, trained)
        metrics = {**reply.metrics, "personal-loss": summary.loss, **stored}
        return Reply(reply.arrays, metrics)

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        for parameter, anchor in zip(model.parameters(), self._anchor, strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - anchor, alpha=self.ditto_lambda)

    @contextmanager
    def _personal(self, anchor: list[Tensor]) -> Iterator[None]:
        """Train as the message says of the personal model, and as usual afterwards."""
        usual = self.training
        try:
            self.training = self._personal_training()
            self._anchor = anchor
            yield
        finally:
            self.training, self._anchor = usual, ()

    def _personal_training(self) -> TrainingOptions:
        options = self.training
        epochs, steps = self.ditto_local_epochs, self.ditto_local_steps
        rate = self.ditto_learning_rate
        if epochs or steps:
            options = replace(options, local_epochs=epochs, local_steps=steps)
        return replace(options, learning_rate=rate) if rate else options
