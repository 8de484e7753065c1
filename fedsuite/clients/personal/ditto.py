"""Client of Ditto: FedAvg's, with a personal model of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsuite.messages.records import ARRAYS, Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.scoring import prefixed
from fedsuite.training.told import Told


class DittoClient(FederatedClient):
    """Trains the received model as FedAvg's client does, then its personal model.

    The model handed to the constructor is where the personal one starts, buffers included.
    The message says how to train it: ``ditto-lambda``, ``ditto-local-epochs``,
    ``ditto-local-steps``, ``ditto-learning-rate``.
    """

    ditto_lambda = Told(float)
    ditto_local_epochs = Told(int)
    ditto_local_steps = Told(int)
    ditto_learning_rate = Told(float)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._initial = model_arrays(self.model)
        self._anchor: list[Tensor] = []

    def on_train(self, request: Request) -> Reply:
        """Train the received model, then the personal one; send the first, keep the other.

        Afterwards ``self.model`` is the trained global model again.
        """
        load_arrays(self.model, request.arrays[ARRAYS])
        anchor = [p.detach().clone() for p in self.model.parameters()]
        reply = super().on_train(request)
        trained = model_arrays(self.model)
        load_arrays(self.model, self.load_state(request) or self._initial)
        with self._personal(anchor):
            summary = self.train_locally(request, purpose="personal-batches")
        stored = self.save_state(request, model_arrays(self.model))
        load_arrays(self.model, trained)
        return Reply(
            reply.arrays, {**reply.metrics, "personal-loss": summary.loss, **stored}
        )

    def on_evaluate(self, request: Request) -> Reply:
        """Score the personal model; tell loss and accuracy of the received one too."""
        shared = super().on_evaluate(request).metrics
        received = model_arrays(self.model)
        load_arrays(self.model, self.load_state(request) or self._initial)
        own = self.evaluation()
        load_arrays(self.model, received)
        return Reply(metrics={**own.metrics, **prefixed("global", shared)})

    @torch.no_grad()
    def before_step(self, model: nn.Module) -> None:
        """Add lambda (v - w_t) to the gradients, if it is the personal model's step."""
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
            self.training, self._anchor = usual, []

    def _personal_training(self) -> TrainingOptions:
        options = self.training
        epochs, steps = self.ditto_local_epochs, self.ditto_local_steps
        rate = self.ditto_learning_rate
        if epochs or steps:
            options = replace(options, local_epochs=epochs, local_steps=steps)
        return replace(options, learning_rate=rate) if rate else options
