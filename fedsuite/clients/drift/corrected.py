"""Base of clients that keep vectors and correct their gradients by them.

Vectors belong to parameters that require a gradient; buffers have none. A message that
holds a part of the model's arrays uses and changes the vectors of that part alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    COUNT_EXAMPLES,
    MEAN_EXAMPLES,
    NUM_EXAMPLES,
    PLAIN_MEAN,
    Arrays,
    ConfigError,
    FederatedClient,
    Reply,
    Request,
    RunError,
    TrainingSummary,
    load_arrays,
    model_arrays,
)
from fedsuite.training.scoring import is_score


class CorrectedClient(FederatedClient):
    """Adds ``offset + pull (w - w_t)`` to each gradient, w_t being the received model."""

    KEEPS_STATE = True
    ACTIONS: ClassVar[Mapping[str, str]] = {
        **FederatedClient.ACTIONS,
        COUNT_EXAMPLES: "on_count_examples",
    }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.training.optimizer != "sgd" or self.training.momentum:
            raise ConfigError(
                f"{type(self).__name__} needs optimizer = 'sgd' and momentum = 0.0: its "
                "equations are those of plain SGD steps"
            )
        self._offsets: dict[str, Tensor] = {}
        self._received: dict[str, Tensor] = {}
        self._pull = 0.0
        self._corrected: set[str] = set()

    def on_count_examples(self, request: Request) -> Reply:
        """Report the number of training examples."""
        return Reply(metrics={NUM_EXAMPLES: len(self.train_data)})

    @override
    def on_evaluate(self, request: Request) -> Reply:
        reply = super().on_evaluate(request)
        if PLAIN_MEAN not in request.arrays:
            return reply
        load_arrays(self.model, request.arrays[PLAIN_MEAN])
        plain = self.evaluation().metrics
        load_arrays(self.model, request.arrays[ARRAYS])
        more = {f"plain-mean-{name}": plain[name] for name in plain if is_score(name)}
        return Reply(reply.arrays, {**reply.metrics, **more})

    def trainable(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that are parameters requiring a gradient."""
        trainable = {n for n, p in self.model.named_parameters() if p.requires_grad}
        return [name for name in names if name in trainable]

    def train_corrected(
        self, request: Request, offsets: Arrays, pull: float = 0.0
    ) -> tuple[Arrays, TrainingSummary]:
        """Train the received model; return its received names' arrays, and the summary.

        ``offsets`` are added to the gradients; ``pull`` is the factor on the distance from
        the received model, of the parameters with offsets.
        """
        received = request.arrays[ARRAYS]
        load_arrays(self.model, received)
        for name, parameter in self.model.named_parameters():
            if name in offsets:
                offset = torch.from_numpy(np.array(offsets[name]))
                self._offsets[name] = offset.to(parameter.device, parameter.dtype)
                self._received[name] = parameter.detach().clone()
        self._pull = pull
        self._corrected = set()
        try:
            summary = self.train_locally(request)
        finally:
            self._offsets, self._received, self._pull = {}, {}, 0.0
        return model_arrays(self.model, received), summary

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is None or name not in self._offsets:
                continue
            self._corrected.add(name)
            parameter.grad.add_(self._offsets[name])
            if self._pull:
                parameter.grad.add_(parameter - self._received[name], alpha=self._pull)

    def new_control(
        self,
        request: Request,
        own: Arrays,
        control: Arrays,
        trained: Arrays,
        summary: TrainingSummary,
    ) -> Arrays:
        """Return c_k - c + (w_t - w_k) / (K_k eta) in float64.

        The quotient is the mean gradient of plain SGD's steps; K_k is the client's number
        of steps, eta its rate of this round. A parameter that no step gave a gradient keeps
        its c_k.
        """
        scale = summary.num_steps * self.training.learning_rate_at(request.server_round)
        moved = model_change(request.arrays[ARRAYS], trained, own)
        return {
            name: np.subtract(array, control[name], dtype=np.float64) - moved[name] / scale
            if name in self._corrected
            else array
            for name, array in own.items()
        }

    def size_factor(self, request: Request) -> float:
        """Return omega_k, the client's number of examples over the mean; 1 if not asked."""
        if MEAN_EXAMPLES not in request.config or not len(self.train_data):
            return 1.0
        return len(self.train_data) / request.number(MEAN_EXAMPLES)

    def record(self, request: Request, name: str) -> Arrays:
        """Return a record that must stand in the message."""
        if name not in request.arrays:
            raise RunError(
                f"client {self.client_id}: the message has no record {name}: use the "
                f"strategy that belongs to {type(self).__name__}"
            )
        return request.arrays[name]


def vector_of(
    state: Mapping[str, NDArray[Any]], kind: str, like: Arrays, names: Iterable[str]
) -> Arrays:
    """Return one of the vectors that a client keeps, zero where it keeps none yet."""
    return {name: state.get(f"{kind}/{name}", np.zeros_like(like[name])) for name in names}


def with_vector(state: Arrays, kind: str, vector: Arrays) -> Arrays:
    """Return a state with a vector replaced, for the names that it holds."""
    return {**state, **{f"{kind}/{name}": array for name, array in vector.items()}}


def model_change(received: Arrays, trained: Arrays, names: Iterable[str]) -> Arrays:
    """Return Delta_k = w_k - w_t in float64."""
    return {
        name: np.subtract(trained[name], received[name], dtype=np.float64) for name in names
    }


def moved_by(vector: Arrays, change: Arrays) -> Arrays:
    """Return ``vector + change`` in the dtypes of ``vector``."""
    return {name: (a + change[name]).astype(a.dtype) for name, a in vector.items()}


def change_record(old: Arrays, new: Arrays, control: Arrays) -> Arrays:
    """Return ``new - old`` with the names and dtypes of ``control``, 0 for other names."""
    return {
        name: (new[name] - old[name]).astype(array.dtype)
        if name in old
        else np.zeros_like(array)
        for name, array in control.items()
    }
