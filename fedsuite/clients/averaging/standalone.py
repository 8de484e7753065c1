"""Client that trains alone."""

from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from fedsuite.client import USUAL, Reply, Request, Told, TrainingSummary, model_arrays
from fedsuite.clients.personal.own_model import OwnModelClient


class StandaloneClient(OwnModelClient):
    """Keeps its own model from round to round; never sends or receives one."""

    SENDS: ClassVar[frozenset[str]] = USUAL
    passes = Told(int, otherwise=-1)
    """Passes over the data in this round; below 0 are those of the options."""

    @override
    def on_train(self, request: Request) -> Reply:
        self.load_own(request)
        metrics = self.train_metrics(self._trained(request))
        stored = self.save_state(request, model_arrays(self.model))
        return Reply(metrics={**metrics, **stored})

    def _trained(self, request: Request) -> TrainingSummary:
        if self.passes < 0:
            return self.train_locally(request)
        options = replace(self.training, local_epochs=self.passes, local_steps=0)
        return self.train_locally(request, training=options)
