"""Client of IFCA: trains the received model that fits its data best."""

from typing import ClassVar

from torch import nn
from typing_extensions import override

from fedsuite.client import CLUSTER, Reply, Request, load_arrays, model_arrays
from fedsuite.clients.personal.several_models import SeveralModelsClient, received_models


class IFCAClient(SeveralModelsClient):
    """Trains, or is scored with, the model of the least loss on its training rows."""

    SENDS: ClassVar[frozenset[str]] = SeveralModelsClient.SENDS | {CLUSTER}

    @override
    def on_train(self, request: Request) -> Reply:
        number, name = self._load_best(request)
        summary = self.train_locally(request)
        trained = model_arrays(self.model, request.arrays[name])
        return Reply({name: trained}, {**self.train_metrics(summary), CLUSTER: number})

    @override
    def evaluated(self, request: Request) -> nn.Module:
        self._load_best(request)
        return self.model

    def _load_best(self, request: Request) -> tuple[int, str]:
        """Load the model of the least loss, the first of several; return which it is."""
        models = received_models(request)
        number = int(self.losses_under(models).argmin())
        name = list(models)[number]
        load_arrays(self.model, models[name])
        return number, name
