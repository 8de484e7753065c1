"""Client of lp-proj: an own model whose projection is drawn to a common one."""

from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    REFERENCE,
    UPDATE,
    USUAL,
    Reply,
    Request,
    Told,
    model_arrays,
    numpy_stream,
)
from fedsuite.clients.personal.own_model import OwnModelClient

LARGEST_GRADIENT = 60.0
"""Length to which the gradient of the loss is clipped."""


@lru_cache(maxsize=1)
def projection(seed: int, dimensions: int, size: int) -> Tensor:
    """Return P, float32 ``[dimensions, size]``, whose rows have length 1."""
    rows = np.empty((dimensions, size), np.float32)
    for number in range(dimensions):
        row = numpy_stream(seed, "projection", number).standard_normal(size)
        rows[number] = row / np.sqrt(np.square(row).sum())
    return torch.from_numpy(rows)


class LpProjClient(OwnModelClient):
    """Trains and keeps its own model; sends how far it moved the reference."""

    SENDS: ClassVar[frozenset[str]] = USUAL | {f"{UPDATE}/{REFERENCE}"}
    lp_proj_p = Told(int)
    lp_proj_lambda = Told(float)
    lp_proj_inner_steps = Told(int)
    lp_proj_learning_rate = Told(float)
    _reference: Tensor | None = None

    @override
    def on_train(self, request: Request) -> Reply:
        self.load_own(request)
        received = request.arrays[REFERENCE][REFERENCE]
        vector = self._vector(self.model)
        self._reference = torch.tensor(received).to(vector)
        self._projection = projection(self.seed, len(received), len(vector)).to(vector)
        try:
            summary = self.train_locally(request)
            if summary.num_steps % self.lp_proj_inner_steps:
                self._follow(self.model)
            moved = self._reference.cpu().numpy() - received
        finally:
            self._reference = None
        stored = self.save_state(request, model_arrays(self.model))
        update = {UPDATE: {REFERENCE: moved.astype(received.dtype)}}
        return Reply(update, {**self.train_metrics(summary), **stored})

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        parameters = self._parameters(model)
        if self._reference is None or self.lp_proj_lambda == 0:
            return
        nn.utils.clip_grad_norm_(parameters, LARGEST_GRADIENT)
        pull = self.lp_proj_lambda * (self._direction(model) @ self._projection)
        parts = torch.split(pull, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            if parameter.grad is not None:
                parameter.grad.sub_(part.view_as(parameter))

    @override
    def after_step(self, model: nn.Module, step: int) -> None:
        if step % self.lp_proj_inner_steps == 0:
            self._follow(model)

    @torch.no_grad()
    def _follow(self, model: nn.Module) -> None:
        if self._reference is not None:
            rate = self.lp_proj_learning_rate * self.lp_proj_lambda
            self._reference -= rate * self._direction(model)

    def _direction(self, model: nn.Module) -> Tensor:
        """Return psi(u - P theta)."""
        assert self._reference is not None
        vector = self._vector(model)
        gap = self._reference - self._projection @ vector
        return gap.sign() if self.lp_proj_p == 1 else gap

    def _vector(self, model: nn.Module) -> Tensor:
        # Not torch's parameters_to_vector, which refuses parameters with strides.
        return torch.cat([p.reshape(-1) for p in self._parameters(model)])

    def _parameters(self, model: nn.Module) -> list[nn.Parameter]:
        return [p for p in model.parameters() if p.requires_grad]
