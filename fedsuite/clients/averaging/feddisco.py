"""Client of FedDisco: reports how far its labels are from uniform."""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.client import FederatedClient, Reply, Request, Told
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.data.specs import IGNORED
from fedsuite.models.evaluation_mode import evaluation_mode


def label_discrepancy(counts: NDArray[np.int64], measure: str) -> float:
    """Return the distance of label counts ``[classes]`` from uniform; 0 of no examples.

    ``measure`` is ``kl``, KL(labels || uniform) in nats, 0 to log of the number of classes,
    or ``l2``, the Euclidean distance of the frequencies, 0 to below 1.
    """
    total = int(counts.sum())
    if total == 0:
        return 0.0
    shares = counts / total
    uniform = 1.0 / len(counts)
    if measure == "l2":
        return float(np.sqrt(((shares - uniform) ** 2).sum()))
    positive = shares[shares > 0]
    return max(float((positive * np.log(positive / uniform)).sum()), 0.0)


class FedDISCOClient(FederatedClient):
    """Trains as FedAvg's client and reports ``discrepancy``.

    The model's outputs say how many classes there are.
    """

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {"discrepancy"}
    feddisco_measure = Told(str)

    @override
    def on_train(self, request: Request) -> Reply:
        reply = super().on_train(request)
        discrepancy = label_discrepancy(self.label_counts(), self.feddisco_measure)
        return Reply(reply.arrays, {**reply.metrics, "discrepancy": discrepancy})

    @torch.no_grad()
    def label_counts(self) -> NDArray[np.int64]:
        """Return the client's training examples of each class."""
        with evaluation_mode(self.model):
            outputs = self.model(self.train_data.features[:1]).shape[-1]
        labels = self.train_data.labels.cpu().numpy().ravel()
        counted = labels[labels != IGNORED]
        return np.bincount(counted, minlength=outputs).astype(np.int64)
