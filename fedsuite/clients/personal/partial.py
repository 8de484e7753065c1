"""Client that shares a part of its model."""

from typing import Any

from fedsuite.messages.records import ARRAYS, Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingSummary


class PartialClient(FederatedClient):
    """Completes what it receives with a part of its own, and never sends that part.

    The own part is what a training message does not hold. It goes on from round to round
    in the client's store, starting from the model handed to the constructor.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._initial = model_arrays(self.model)

    def on_train(self, request: Request) -> Reply:
        """Train, send back what came, and store the rest."""
        received = request.arrays[ARRAYS]
        self._load_whole(request)
        metrics = self.train_metrics(self.train_parts(request))
        own = [name for name in self._names if name not in received]
        stored = self.save_state(request, model_arrays(self.model, own)) if own else {}
        return Reply({ARRAYS: model_arrays(self.model, received)}, {**metrics, **stored})

    def train_parts(self, request: Request) -> TrainingSummary:
        """Train the whole model; a method may train its parts otherwise."""
        return self.train_locally(request)

    def on_evaluate(self, request: Request) -> Reply:
        """Evaluate the received part with the own one on the client's test data."""
        self._load_whole(request)
        return self.evaluation()

    def _load_whole(self, request: Request) -> None:
        own = self.load_state(request) or {}
        load_arrays(self.model, {**self._initial, **own, **request.arrays[ARRAYS]})
