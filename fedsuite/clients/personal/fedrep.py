"""Client of FedRep: trains its own head first, then the received body."""

from dataclasses import replace

from typing_extensions import override

from fedsuite.client import ARRAYS, Request, Told, TrainingSummary
from fedsuite.clients.personal.partial import PartialClient


class FedRepClient(PartialClient):
    """Trains its own part first, then the received one, each with the other frozen.

    The received part gets the client's local work.
    """

    head_epochs = Told(int)

    @override
    def train_parts(self, request: Request) -> TrainingSummary:
        body = frozenset(request.arrays[ARRAYS])
        head = frozenset(self._names) - body
        options = replace(self.training, local_epochs=self.head_epochs, local_steps=0)
        first = self.train_locally(request, "head-batches", training=options, frozen=body)
        return first.then(self.train_locally(request, frozen=head))
