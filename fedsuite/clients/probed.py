"""Client of the methods that ask for the loss before training; else FedAvg's."""

from fedsuite.clients.base import FederatedClient
from fedsuite.clients.training import mean_loss
from fedsuite.models.arrays import load_arrays
from fedsuite.records import ARRAYS, LEARNING_RATE, LOSS_BEFORE, Reply, Request


class ProbedClient(FederatedClient):
    """Trains as FedAvg's client, and reports two facts more.

    ``loss-before`` is the mean loss of the received model over all of the client's
    training data, in evaluation mode; ``learning-rate`` is the rate of this round. The
    extra forward pass leaves no trace: the training is FedAvg's, bit for bit.
    """

    def on_train(self, request: Request) -> Reply:
        """Measure the received model, then train it."""
        load_arrays(self.model, request.arrays[ARRAYS])
        with self.layer_stream("probe", request.server_round):
            before = self.loss_before()
        reply = super().on_train(request)
        rate = self.training.learning_rate_at(request.server_round)
        metrics = {**reply.metrics, LOSS_BEFORE: before, LEARNING_RATE: rate}
        return Reply(reply.arrays, metrics)

    def loss_before(self) -> float:
        """Return the loss of the received model; the base's loss unless overridden."""
        return mean_loss(self.model, self.train_data, super().loss)
