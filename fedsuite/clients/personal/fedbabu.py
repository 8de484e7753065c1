"""Client of FedBABU: trains the body alone, and tunes the model before it is scored."""

from collections.abc import Collection

from typing_extensions import override

from fedsuite.client import ARRAYS, Reply, Request, Told, load_arrays, model_arrays
from fedsuite.clients.personal.fedavg_ft import FedAvgFTClient
from fedsuite.models.head import head_names


class FedBABUClient(FedAvgFTClient):
    """Trains the received model with its head frozen, and sends the body."""

    fine_tune_part = Told(str, otherwise="full")

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        head = head_names(self.model)
        summary = self.train_locally(request, frozen=head)
        body = [name for name in request.arrays[ARRAYS] if name not in head]
        return Reply({ARRAYS: model_arrays(self.model, body)}, self.train_metrics(summary))

    @override
    def untuned(self) -> Collection[str]:
        head = head_names(self.model)
        body = frozenset(self._names) - head
        return {"full": (), "head": body, "body": head}[self.fine_tune_part]
