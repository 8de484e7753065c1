"""Client of FedRep."""

from dataclasses import replace

from fedsuite.clients.personal.partial import PartialClient
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.training.loop import TrainingSummary


class FedRepClient(PartialClient):
    """Trains its own part first, then the received one, each with the other frozen.

    The epochs of its own part come with the message as ``head-epochs``; the received part
    gets the client's local work.
    """

    def train_parts(self, request: Request) -> TrainingSummary:
        """Train head and body in turns, with a fresh optimiser each."""
        body = frozenset(request.arrays[ARRAYS])
        head = frozenset(self._names) - body
        epochs = int(request.number("head-epochs"))
        options = replace(self.training, local_epochs=epochs, local_steps=0)
        first = self.train_locally(request, "head-batches", training=options, frozen=body)
        return first.then(self.train_locally(request, frozen=head))
