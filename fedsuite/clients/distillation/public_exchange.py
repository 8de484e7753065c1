"""Clients that learn from each other's outputs on public data; their models stay home.

A round is a local phase on the client's own data and, after it, ``transfer-steps``
exchanges: in each a client takes one step on what the server made of all outputs on one
public mini-batch, and answers with its outputs on the next.

Between messages model, optimiser and what a method remembers are stored. The graph of the
outputs that were sent is gone when the step is taken: they are computed again, on the same
parameters and with the same draws of layers such as dropout, so that they are the same
bits. Normalisation layers use the statistics of the batch both times, and their running
ones move once.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedsuite.clients.distillation.private_model import PrivateModelClient
from fedsuite.core.errors import RunError
from fedsuite.data.public_batches import public_batch
from fedsuite.messages.records import (
    EVALUATE,
    LOCAL_PHASE,
    LOGITS,
    OUTPUTS,
    TRANSFER,
    Arrays,
    MetricValue,
    Reply,
    Request,
)
from fedsuite.training.told import Told


class PublicExchangeClient(PrivateModelClient):
    """Trains its own model on its data, then towards others' outputs on public data.

    The model handed to the constructor is where it starts. A method says in
    :meth:`transfer_loss` what is learnt from the server's answer, and in
    :meth:`public_outputs` what is sent; ``self.memory`` holds arrays that it needs again.
    """

    transfer_steps = Told(int)
    public_step = Told(int)
    public_batch_size = Told(int)
    public_seed = Told(int)
    num_responders = Told(int)

    ACTIONS: ClassVar[Mapping[str, str]] = {
        LOCAL_PHASE: "on_local_phase",
        TRANSFER: "on_transfer",
        EVALUATE: "on_evaluate",
    }
    TRAINED_BY: ClassVar[str] = LOCAL_PHASE

    def public_outputs(self, features: Tensor) -> dict[str, Tensor]:
        """Return what is told of a public batch, by array name: the logits."""
        return {LOGITS: self.model(features)}

    @abstractmethod
    def transfer_loss(
        self, request: Request, step: int, outputs: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Return the loss of a transfer step, or None if there is nothing to learn.

        Parameters
        ----------
        request
            Holds the server's answer; see :meth:`received`.
        step
            Number of the exchange within the round, from 0.
        outputs
            Of :meth:`public_outputs` on the step's batch, with their graph.
        """

    def before_local_phase(self, request: Request) -> None:
        """Do something with the model as the last round left it."""

    def after_local_phase(self, request: Request) -> None:
        """Do something with the model as local training left it."""

    def on_local_phase(self, request: Request) -> Reply:
        """Train on the client's data; tell the outputs on the first public batch."""
        self._load_for_training(request)
        self.before_local_phase(request)
        summary = self.train_locally(request)
        self.after_local_phase(request)
        metrics = self.train_metrics(summary)
        return self._reply(request, 0, metrics)

    def on_transfer(self, request: Request) -> Reply:
        """Take one step on the server's answer; tell the outputs on the next batch."""
        self._load(request)
        step = self.public_step
        metrics: dict[str, MetricValue] = {"num-examples": len(self.train_data)}
        loss = self._step(request, step)
        if loss is not None:
            metrics["transfer-loss"] = loss
        return self._reply(request, step + 1, metrics)

    def public_features(self, request: Request, step: int) -> Tensor:
        """Return the inputs of the public batch of a step, the same at all clients.

        Raises
        ------
        RunError
            If the client has no public data.
        """
        if self.public is None or not len(self.public):
            raise RunError(
                f"client {self.client_id} has no public data: set public-size or "
                "public-dir, or hand the client the public inputs"
            )
        rows = public_batch(
            len(self.public),
            self.public_batch_size,
            self.public_seed,
            request.server_round,
            step,
        )
        return self.public[rows]

    def outputs_without_trace(self, request: Request, step: int) -> dict[str, Tensor]:
        """Return the outputs on a step's batch; no parameter and no statistic changes."""
        features = self.public_features(request, step)
        self.model.train()
        with torch.no_grad(), kept_buffers(self.model), self._layers(request, step):
            return self.public_outputs(features)

    def _step(self, request: Request, step: int) -> float | None:
        features = self.public_features(request, step)
        optimizer = self.make_optimizer(self.training, request.server_round)
        self.model.train()
        optimizer.zero_grad(set_to_none=True)
        with self._layers(request, step):
            loss = self.transfer_loss(request, step, self.public_outputs(features))
        if loss is None:
            return None
        value = float(loss.detach())
        if not torch.isfinite(loss.detach()):
            raise RunError(
                f"client {self.client_id}, round {request.server_round}: the loss on "
                f"public data is {value}: lower learning-rate, or look at the inputs"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        if self.training.clip_gradient_norm > 0:
            norm = self.training.clip_gradient_norm
            nn.utils.clip_grad_norm_(self.model.parameters(), norm)
        optimizer.step()
        return value

    def _reply(
        self, request: Request, step: int, metrics: Mapping[str, MetricValue]
    ) -> Reply:
        """Return the reply with the outputs of a step, none after the last; store state."""
        arrays: dict[str, Arrays] = {}
        if step < self.transfer_steps:
            outputs = self.outputs_without_trace(request, step)
            arrays[OUTPUTS] = {
                n: t.detach().cpu().numpy().copy() for n, t in outputs.items()
            }
        return Reply(arrays, {**metrics, **self._save(request)})

    def _layers(self, request: Request, step: int) -> Any:
        return self.layer_stream(f"transfer-{step}", request.server_round)


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put a model's buffers, such as running statistics, back as they were."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
