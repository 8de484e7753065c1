"""Clients that keep a model of their own."""

from typing import Any

from torch import nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    FederatedClient,
    Reply,
    Request,
    load_arrays,
    model_arrays,
)
from fedsuite.training.scoring import prefixed


class OwnModelClient(FederatedClient):
    """Stores its own model, which starts from the model handed to the constructor."""

    KEEPS_STATE = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._initial = model_arrays(self.model)

    @override
    def evaluated(self, request: Request) -> nn.Module:
        self.load_own(request)
        return self.model

    def load_own(self, request: Request) -> None:
        """Load the own model, buffers included."""
        load_arrays(self.model, {**self._initial, **(self.load_state(request) or {})})


class PersonalModelClient(OwnModelClient):
    """Keeps its own model beside the received one, and is scored with both."""

    @override
    def on_evaluate(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        shared = self.evaluation().metrics
        received = model_arrays(self.model)
        own = super().on_evaluate(request).metrics
        load_arrays(self.model, received)
        return Reply(metrics={**own, **prefixed("global", shared)})
