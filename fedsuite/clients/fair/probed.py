"""Client of methods that ask for the loss before training; else FedAvg's."""

from typing import ClassVar

from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    LEARNING_RATE,
    LOSS_BEFORE,
    FederatedClient,
    Reply,
    Request,
    load_arrays,
)


class ProbedClient(FederatedClient):
    """Trains as FedAvg's client, bit for bit, and reports the loss before it and its rate.

    ``loss-before`` is the received model's mean loss over the training data, in evaluation
    mode; ``learning-rate`` is the rate of this round.
    """

    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {LOSS_BEFORE, LEARNING_RATE}

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        before = self.full_loss(request)
        reply = super().on_train(request)
        rate = self.training.learning_rate_at(request.server_round)
        metrics = {**reply.metrics, LOSS_BEFORE: before, LEARNING_RATE: rate}
        return Reply(reply.arrays, metrics)
