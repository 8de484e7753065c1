"""Clients that keep their model and its optimiser from message to message."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsuite.client import (
    LOGITS,
    NUM_EXAMPLES,
    Arrays,
    MetricValue,
    Reply,
    Request,
    RunError,
    Told,
    TrainingOptions,
    load_arrays,
    model_arrays,
)
from fedsuite.clients.personal.own_model import OwnModelClient
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.models.features import feature_width
from fedsuite.models.optimizer_state import load_optimizer, optimizer_arrays

_PARTS = MODEL, OPTIMIZER, MEMORY = "model", "optimizer", "memory"


class PrivateModelClient(OwnModelClient):
    """Stores model, optimiser and ``self.memory``, arrays that its method needs again."""

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    reset_optimizer = Told(bool, otherwise=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.memory: Arrays = {}
        self._moments: Arrays = {}
        self._optimizer: torch.optim.Optimizer | None = None

    def on_feature_width(self, request: Request) -> Reply:
        """Report the number of features per sample that the classifier gets."""
        width = feature_width(self.model)
        return Reply(metrics={NUM_EXAMPLES: len(self.train_data), "feature-width": width})

    def received(self, request: Request, record: str, name: str = LOGITS) -> Tensor:
        """Return an array of the server's answer as a tensor; RunError without it."""
        array = request.arrays.get(record, {}).get(name)
        if array is None:
            raise RunError(
                f"client {self.client_id}: the message has no {record}/{name}: use the "
                "strategy that belongs to this client"
            )
        # In memory that torch allocated: sums in it do not depend on its alignment.
        return torch.tensor(array, device=self.train_data.features.device)

    @override
    def make_optimizer(
        self, training: TrainingOptions, server_round: int
    ) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer(training, server_round)
        load_optimizer(self.model, optimizer, self._moments)
        self._optimizer = optimizer
        return optimizer

    def _load_for_training(self, request: Request) -> None:
        """Restore the last message's state, but for an optimiser that begins anew."""
        self.load_own(request)
        if self.reset_optimizer:
            self._moments = {}

    @override
    def load_own(self, request: Request) -> None:
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
        model = model_arrays(self.model)
        parts = {MODEL: model, OPTIMIZER: self._moments, MEMORY: self.memory}
        state = {f"{part}/{n}": a for part in parts for n, a in parts[part].items()}
        for array in state.values():
            # All are copies already: the store need not make another.
            array.flags.writeable = False
        return self.save_state(request, state)
