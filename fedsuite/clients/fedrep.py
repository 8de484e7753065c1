"""Client of FedRep."""

from dataclasses import replace

from fedsuite.clients.partial import PartialClient
from fedsuite.clients.training import TrainingSummary
from fedsuite.records import ARRAYS, Request


class FedRepClient(PartialClient):
    """Trains its own part first, then the received one, each with the other frozen.

    The numbers of epochs come with the message as ``head-epochs`` and ``body-epochs``.
    """

    def train_parts(self, request: Request) -> TrainingSummary:
        """Train head and body in turns, with a fresh optimiser each."""
        body = frozenset(request.arrays[ARRAYS])
        head = frozenset(self._names) - body
        epochs = int(request.number("head-epochs"))
        options = replace(self.training, local_epochs=epochs, local_steps=0)
        first = self.train_locally(request, "head-batches", training=options, frozen=body)
        epochs = int(request.number("body-epochs"))
        options = replace(self.training, local_epochs=epochs, local_steps=0)
        return first.then(self.train_locally(request, training=options, frozen=head))
