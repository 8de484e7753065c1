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

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedsuite.clients.base import FederatedClient
from fedsuite.clients.training import TrainingOptions
from fedsuite.errors import RunError
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.optimizer_state import load_optimizer, optimizer_arrays
from fedsuite.public_batches import public_batch
from fedsuite.records import (
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

_PARTS = MODEL, OPTIMIZER, MEMORY = "model", "optimizer", "memory"


class PublicExchangeClient(FederatedClient):
    """Trains its own model on its data, then towards others' outputs on public data.

    The model handed to the constructor is where it starts. A method says in
    :meth:`transfer_loss` what is learnt from the server's answer, and in
    :meth:`public_outputs` what is sent; ``self.memory`` holds arrays that it needs again.
    """

    ACTIONS: ClassVar[Mapping[str, str]] = {
        LOCAL_PHASE: "on_local_phase",
        TRANSFER: "on_transfer",
        EVALUATE: "on_evaluate",
    }
    TRAINED_BY: ClassVar[str] = LOCAL_PHASE

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.memory: Arrays = {}
        self._initial = model_arrays(self.model)
        self._moments: Arrays = {}
        self._optimizer: torch.optim.Optimizer | None = None

    # ------------------------------------------------------------- for methods to override

    def public_outputs(self, features: Tensor) -> dict[str, Tensor]:
        """Return what is told of a public batch, by array name: the logits."""
        return {LOGITS: self.model(features)}

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
        raise NotImplementedError

    def before_local_phase(self, request: Request) -> None:
        """Do something with the model as the last round left it."""

    def after_local_phase(self, request: Request) -> None:
        """Do something with the model as local training left it."""

    # --------------------------------------------------------------------------- actions

    def on_local_phase(self, request: Request) -> Reply:
        """Train on the client's data; tell the outputs on the first public batch."""
        self._load(request)
        if request.config.get("reset-optimizer", False):
            self._moments = {}
        self.before_local_phase(request)
        summary = self.train_locally(request)
        self.after_local_phase(request)
        metrics = self.train_metrics(summary)
        return self._reply(request, 0, metrics)

    def on_transfer(self, request: Request) -> Reply:
        """Take one step on the server's answer; tell the outputs on the next batch."""
        self._load(request)
        step = int(request.number("public-step"))
        metrics: dict[str, MetricValue] = {"num-examples": len(self.train_data)}
        loss = self._step(request, step)
        if loss is not None:
            metrics["transfer-loss"] = loss
        return self._reply(request, step + 1, metrics)

    def on_evaluate(self, request: Request) -> Reply:
        """Evaluate the own model on the client's test data."""
        self._load(request)
        return self.evaluation(self.test_data)

    # ----------------------------------------------------------------- for methods to use

    def received(self, request: Request, record: str, name: str = LOGITS) -> Tensor:
        """Return an array of the server's answer as a tensor on the model's device.

        Raises
        ------
        RunError
            If the message lacks it.
        """
        array = request.arrays.get(record, {}).get(name)
        if array is None:
            raise RunError(
                f"client {self.client_id}: the message has no {record}/{name}: use the "
                "strategy that belongs to this client"
            )
        return torch.from_numpy(array.copy()).to(self.train_data.features.device)

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
            int(request.number("public-batch-size")),
            int(request.number("public-seed")),
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

    def make_optimizer(
        self, training: TrainingOptions, server_round: int
    ) -> torch.optim.Optimizer:
        """Return an optimiser that goes on where the last one of this client stopped."""
        optimizer = super().make_optimizer(training, server_round)
        load_optimizer(self.model, optimizer, self._moments)
        self._optimizer = optimizer
        return optimizer

    # --------------------------------------------------------------------------- machinery

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
        if step < int(request.number("transfer-steps")):
            outputs = self.outputs_without_trace(request, step)
            arrays[OUTPUTS] = {
                n: t.detach().cpu().numpy().copy() for n, t in outputs.items()
            }
        return Reply(arrays, {**metrics, **self._save(request)})

    def _layers(self, request: Request, step: int) -> Any:
        return self.layer_stream(f"transfer-{step}", request.server_round)

    def _load(self, request: Request) -> None:
        """Take up where the last message left off."""
        self._optimizer = None
        state = self.load_state(request)
        if state is None:
            load_arrays(self.model, self._initial)
            self._moments, self.memory = {}, {}
            return
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        for key, array in state.items():
            part, _, name = key.partition("/")
            parts[part][name] = array
        load_arrays(self.model, parts[MODEL])
        self._moments, self.memory = parts[OPTIMIZER], parts[MEMORY]

    def _save(self, request: Request) -> dict[str, MetricValue]:
        if self._optimizer is not None:
            self._moments = optimizer_arrays(self.model, self._optimizer)
        parts = zip(
            _PARTS, (model_arrays(self.model), self._moments, self.memory), strict=True
        )
        state = {f"{part}/{n}": a for part, arrays in parts for n, a in arrays.items()}
        return self.save_state(request, state)


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
