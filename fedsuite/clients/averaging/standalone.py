"""Client that trains alone."""

from typing import Any

from fedsuite.messages.records import Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.training.base import FederatedClient


class StandaloneClient(FederatedClient):
    """Keeps its own model from round to round; never sends or receives one.

    The model handed to the constructor is where it starts.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._initial = model_arrays(self.model)

    def on_train(self, request: Request) -> Reply:
        """Train the own model and store it."""
        self._load_own(request)
        metrics = self.train_metrics(self.train_locally(request))
        return Reply(
            metrics={**metrics, **self.save_state(request, model_arrays(self.model))}
        )

    def on_evaluate(self, request: Request) -> Reply:
        """Evaluate the own model on the client's test data."""
        self._load_own(request)
        return self.evaluation()

    def _load_own(self, request: Request) -> None:
        state = self.load_state(request)
        load_arrays(self.model, self._initial if state is None else state)
