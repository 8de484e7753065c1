"""Clients that learn from each other's outputs on public data; their models stay home.

A round is a local phase on the client's own data, then ``transfer-steps`` exchanges. In
each a client takes one step on what the server made of all outputs on one public
mini-batch, and answers with its outputs on the next.

The graph of the sent outputs is gone when the step is taken. They are computed again with
the same parameters and draws of layers such as dropout, so that they are the same bits.
Normalisation layers use the batch's statistics both times, and their running ones move
once.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedsuite.client import (
    EVALUATE,
    LOCAL_PHASE,
    LOGITS,
    OUTPUTS,
    TRANSFER,
    USUAL,
    Arrays,
    MetricValue,
    NotFiniteError,
    Reply,
    Request,
    RunError,
    Told,
)
from fedsuite.clients.distillation.private_model import PrivateModelClient
from fedsuite.data.public_batches import public_batch


class PublicExchangeClient(PrivateModelClient):
    """Trains its own model on its data, then towards others' outputs on public data."""

    SENDS: ClassVar[frozenset[str]] = USUAL | {f"{OUTPUTS}/{LOGITS}", "transfer-loss"}
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
        """Return what is sent of a public batch, by array name: the logits."""
        return {LOGITS: self.model(features)}

    @abstractmethod
    def transfer_loss(
        self, request: Request, step: int, outputs: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Return the loss of a transfer step, or None if there is nothing to learn.

        Exchanges of a round count from 0. ``outputs`` are :meth:`public_outputs` on the
        step's batch, with their graph; :meth:`received` gets the server's answer.
        """

    def before_local_phase(self, request: Request) -> None:
        """Act on the model as the last round left it."""

    def after_local_phase(self, request: Request) -> None:
        """Act on the model as local training left it."""

    def on_local_phase(self, request: Request) -> Reply:
        """Train on the client's data; send the outputs on the first public batch."""
        self._load_for_training(request)
        self.before_local_phase(request)
        summary = self.train_locally(request)
        self.after_local_phase(request)
        return self._reply(request, 0, self.train_metrics(summary))

    def on_transfer(self, request: Request) -> Reply:
        """Take one step on the server's answer; send the outputs on the next batch."""
        self.load_own(request)
        step = self.public_step
        metrics: dict[str, MetricValue] = {"num-examples": len(self.train_data)}
        loss = self._step(request, step)
        if loss is not None:
            metrics["transfer-loss"] = loss
        return self._reply(request, step + 1, metrics)

    def public_features(self, request: Request, step: int) -> Tensor:
        """Return a step's public batch, the same at all clients; RunError without one."""
        if self.public is None or not len(self.public):
            raise RunError(
                f"client {self.client_id} has no public data: set public-size or "
                "public-dir, or hand the client the public inputs"
            )
        count, size, seed = len(self.public), self.public_batch_size, self.public_seed
        return self.public[public_batch(count, size, seed, request.server_round, step)]

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
            raise NotFiniteError(
                f"client {self.client_id}, round {request.server_round}: the loss on "
                f"public data is {value}: lower learning-rate, or look at the inputs"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        if (norm := self.training.clip_gradient_norm) > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), norm)
        optimizer.step()
        return value

    def _reply(
        self, request: Request, step: int, metrics: Mapping[str, MetricValue]
    ) -> Reply:
        """Store state; return the reply, with outputs unless the last step was taken."""
        arrays: dict[str, Arrays] = {}
        if step < self.transfer_steps:
            # A model may give a parameter itself, which needs a gradient even now.
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
