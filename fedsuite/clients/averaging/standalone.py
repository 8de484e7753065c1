"""Client that trains alone."""

from typing import ClassVar

from fedsuite.clients.personal.own_model import OwnModelClient
from fedsuite.messages.records import Reply, Request
from fedsuite.models.arrays import model_arrays


class StandaloneClient(OwnModelClient):
    """Keeps its own model from round to round; never sends or receives one."""

    BATCHED: ClassVar[bool] = True

    def on_train(self, request: Request) -> Reply:
        """Train the own model and store it."""
        self.load_own(request)
        metrics = self.train_metrics(self.train_locally(request))
        stored = self.save_state(request, model_arrays(self.model))
        return Reply(metrics={**metrics, **stored})
