"""Client of FedALA: learns how much of the received upper layers to take, then trains."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    Arrays,
    Reply,
    Request,
    Told,
    grouped,
    joined,
    load_arrays,
    model_arrays,
    torch_stream,
)
from fedsuite.clients.personal.own_model import PersonalModelClient

MODEL, WEIGHTS = "model", "weights"
"""Names of the groups in what a client keeps."""

STEADY, RECENT, MOST_PASSES = 0.1, 10, 50
"""Standard deviation of the last losses that ends the first learning; passes at most."""


def steady(losses: Sequence[float]) -> bool:
    """Return whether the first learning of the weights ends after these passes' losses."""
    settled = len(losses) > RECENT and float(np.std(losses[-RECENT:])) < STEADY
    return settled or len(losses) >= MOST_PASSES


class FedALAClient(PersonalModelClient):
    """Keeps its trained model, and weights between it and what it receives."""

    ala_layers = Told(int)
    ala_rate = Told(float)
    ala_rows = Told(float)
    _weights: Mapping[str, Tensor] = MappingProxyType({})
    _own: Mapping[str, Tensor] = MappingProxyType({})
    _received: Mapping[str, Tensor] = MappingProxyType({})

    @override
    def on_train(self, request: Request) -> Reply:
        weights = self._mix(request)
        summary = self.train_locally(request)
        trained = model_arrays(self.model)
        stored = self.save_state(request, joined({MODEL: trained, WEIGHTS: weights}))
        return Reply({ARRAYS: trained}, {**self.train_metrics(summary), **stored})

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        for name, weight in self._weights.items():
            parameter = model.get_parameter(name)
            if parameter.grad is not None:
                gap = self._received[name] - self._own[name]
                weight.sub_(self.ala_rate * parameter.grad * gap).clamp_(0.0, 1.0)
                # The optimiser is to move nothing.
                parameter.grad.zero_()
                self._place(name, parameter)

    @override
    def load_own(self, request: Request) -> None:
        load_arrays(self.model, self._kept(request)[0])

    def _kept(self, request: Request) -> tuple[Arrays, Arrays]:
        """Return the own model, and its weights; none before they were learnt."""
        kept = grouped(self.load_state(request) or {})
        return {**self._initial, **kept.get(MODEL, {})}, kept.get(WEIGHTS, {})

    def _mix(self, request: Request) -> Arrays:
        """Load the received model with mixed upper layers; return the weights."""
        own, kept = self._kept(request)
        load_arrays(self.model, request.arrays[ARRAYS])
        parameters = dict(self.model.named_parameters())
        upper = (
            list(parameters)[-self.ala_layers :] if self.ala_layers else list(parameters)
        )
        received = {name: parameters[name].detach().clone() for name in upper}
        mine = {name: torch.tensor(own[name]).to(received[name]) for name in upper}
        if all(torch.equal(mine[name], received[name]) for name in upper):
            return kept
        self._own, self._received = mine, received
        ones = {name: np.ones(tensor.shape) for name, tensor in received.items()}
        self._weights = {
            name: torch.tensor(weight).to(received[name])
            for name, weight in (kept or ones).items()
        }
        try:
            for name in upper:
                self._place(name, parameters[name])
            self._learn(request, once=bool(kept))
            return {name: w.cpu().numpy() for name, w in self._weights.items()}
        finally:
            self._weights = {}

    @torch.no_grad()
    def _place(self, name: str, parameter: Tensor) -> None:
        """Put the mixture into a parameter; a weight of 1 gives the received one's bits."""
        mixed = torch.lerp(self._own[name], self._received[name], self._weights[name])
        parameter.copy_(mixed)

    def _learn(self, request: Request, *, once: bool) -> None:
        """Learn the weights: in one pass, or at first until the losses are steady."""
        if self.ala_rate == 0:
            return
        count = len(self.train_data)
        keys = (self.seed, "ala-rows", request.server_round, self.client_id)
        drawn = torch.randperm(count, generator=torch_stream(*keys))
        options = replace(
            self.training,
            local_epochs=1,
            local_steps=0,
            optimizer="sgd",
            momentum=0.0,
            weight_decay=0.0,
        )
        upper = frozenset(self._received)
        lower = frozenset(self._names) - upper
        losses: list[float] = []
        while not losses or not (once or steady(losses)):
            summary = self.train_locally(
                request,
                f"ala-batches-{len(losses)}",
                training=options,
                frozen=lower,
                rows=drawn[: max(round(self.ala_rows * count), 1)],
            )
            losses.append(summary.loss)
