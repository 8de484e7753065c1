"""Client of FedAvg + fine-tuning."""

from collections.abc import Collection
from dataclasses import replace

from torch import nn
from typing_extensions import override

from fedsuite.client import ARRAYS, FederatedClient, Request, Told, load_arrays


class FedAvgFTClient(FederatedClient):
    """Tunes the received model on its training data before it scores it.

    A message without epochs has the received model scored as it is.
    """

    fine_tune_epochs = Told(int, otherwise=0)

    @override
    def evaluated(self, request: Request) -> nn.Module:
        load_arrays(self.model, request.arrays[ARRAYS])
        if self.fine_tune_epochs > 0:
            epochs = self.fine_tune_epochs
            tuning = replace(self.training, local_epochs=epochs, local_steps=0)
            self.train_locally(
                request, "fine-tune-batches", training=tuning, frozen=self.untuned()
            )
        return self.model

    def untuned(self) -> Collection[str]:
        """Return the names of the arrays that tuning leaves as they are."""
        return ()
