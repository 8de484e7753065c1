"""Client of FedAVE: reports its losses under the received model."""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    LOSSES,
    NUM_BATCHES,
    FederatedClient,
    Reply,
    Request,
    Told,
    load_arrays,
)
from fedsuite.models.evaluation_mode import evaluation_mode


class FedAVEClient(FederatedClient):
    """Sends the losses of its first ``num-batches`` mini-batches along with its model.

    Zeros stand for batches that the client has no data for.
    """

    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {
        f"{LOSSES}/{LOSSES}",
        NUM_BATCHES,
    }
    loss_batch = Told(int)
    num_batches = Told(int)

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        losses = np.zeros(self.num_batches)
        with self.layer_stream("loss-batches", request.server_round):
            batch_losses = self.batch_losses(self.loss_batch, losses.size)
        losses[: batch_losses.size] = batch_losses
        reply = super().on_train(request)
        return Reply(
            {**reply.arrays, LOSSES: {"losses": losses}},
            {**reply.metrics, NUM_BATCHES: batch_losses.size},
        )

    @torch.no_grad()
    def batch_losses(self, size: int, most: int) -> NDArray[np.float64]:
        """Return the loss of each of the first mini-batches, at most ``most``."""
        data, losses = self.train_data, []
        with evaluation_mode(self.model):
            for start in range(0, len(data), size)[:most]:
                part = slice(start, start + size)
                loss = self.loss(self.model, data.features[part], data.labels[part])
                losses.append(float(loss))
        return np.array(losses, dtype=np.float64)
