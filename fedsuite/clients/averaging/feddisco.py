"""Client of FedDisco: tells how far its labels are from uniform."""

import numpy as np
import torch
from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.data.specs import IGNORED
from fedsuite.messages.records import Reply, Request
from fedsuite.models.evaluation_mode import evaluation_mode
from fedsuite.training.base import FederatedClient


def label_discrepancy(counts: NDArray[np.int64], measure: str) -> float:
    """Return how far label counts are from uniform.

    Parameters
    ----------
    counts
        Examples of each class, ``[classes]``. Of no examples the discrepancy is 0.
    measure
        ``kl``, KL(labels || uniform) in nats, 0 to log of the number of classes; or
        ``l2``, the Euclidean distance of the frequencies, 0 to below 1.
    """
    total = int(counts.sum())
    if total == 0:
        return 0.0
    shares = counts / total
    uniform = 1.0 / len(counts)
    if measure == "l2":
        return float(np.sqrt(((shares - uniform) ** 2).sum()))
    held = shares[shares > 0]
    return max(float((held * np.log(held / uniform)).sum()), 0.0)


class FedDISCOClient(FederatedClient):
    """Trains as FedAvg's client and reports ``discrepancy``.

    The message says by which ``feddisco-measure``. Classes are counted up to the number of
    the model's outputs.
    """

    def on_train(self, request: Request) -> Reply:
        """Train, and measure the labels."""
        measure = request.config.get("feddisco-measure")
        if measure not in ("kl", "l2"):
            raise RunError(
                f"client {self.client_id}: the message has no feddisco-measure (kl or l2): "
                "use the strategy FedDISCO, or put it into the config"
            )
        reply = super().on_train(request)
        discrepancy = label_discrepancy(self.label_counts(), str(measure))
        return Reply(reply.arrays, {**reply.metrics, "discrepancy": discrepancy})

    @torch.no_grad()
    def label_counts(self) -> NDArray[np.int64]:
        """Return the client's training examples of each class."""
        with evaluation_mode(self.model):
            outputs = self.model(self.train_data.features[:1]).shape[-1]
        labels = self.train_data.labels.cpu().numpy().ravel()
        counted = labels[labels != IGNORED]
        return np.bincount(counted, minlength=outputs).astype(np.int64)
