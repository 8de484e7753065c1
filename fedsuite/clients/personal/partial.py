"""Client that shares a part of its model."""

from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    Reply,
    Request,
    TrainingSummary,
    load_arrays,
    model_arrays,
)
from fedsuite.clients.personal.own_model import OwnModelClient


class PartialClient(OwnModelClient):
    """Completes what it receives with a part of its own, and never sends that part.

    The own part is what a training message does not hold. The client's store keeps it from
    round to round.
    """

    @override
    def on_train(self, request: Request) -> Reply:
        received = request.arrays[ARRAYS]
        self.load_own(request)
        metrics = self.train_metrics(self.train_parts(request))
        own = [name for name in self._names if name not in received]
        stored = self.save_state(request, model_arrays(self.model, own)) if own else {}
        return Reply({ARRAYS: model_arrays(self.model, received)}, {**metrics, **stored})

    def train_parts(self, request: Request) -> TrainingSummary:
        """Train the whole model; a method may train its parts otherwise."""
        return self.train_locally(request)

    @override
    def load_own(self, request: Request) -> None:
        super().load_own(request)
        load_arrays(self.model, request.arrays[ARRAYS])
