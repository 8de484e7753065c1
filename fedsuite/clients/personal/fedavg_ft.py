"""Client of FedAvg + fine-tuning."""

from dataclasses import replace

from fedsuite.messages.records import ARRAYS, Reply, Request
from fedsuite.models.arrays import load_arrays
from fedsuite.training.base import FederatedClient


class FedAvgFTClient(FederatedClient):
    """Tunes the received model on its training data before it scores it.

    The number of epochs comes with the message as ``fine-tune-epochs``; without it the
    received model is scored as it is.
    """

    def on_evaluate(self, request: Request) -> Reply:
        """Fine-tune, then evaluate; the tuned model is not kept."""
        load_arrays(self.model, request.arrays[ARRAYS])
        epochs = request.config.get("fine-tune-epochs", 0)
        if isinstance(epochs, int) and epochs > 0:
            tuning = replace(self.training, local_epochs=epochs, local_steps=0)
            self.train_locally(request, "fine-tune-batches", training=tuning)
        return self.evaluation(self.test_data)
