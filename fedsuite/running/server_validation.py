"""Scores of models on the server's validation rows."""

from statistics import fmean

import torch
from torch import nn
from torch.nn import functional

from fedsuite.data import Split
from fedsuite.messages.records import Arrays
from fedsuite.models.arrays import load_arrays
from fedsuite.models.evaluation_mode import EVALUATION_BATCH, evaluation_mode
from fedsuite.training.evaluation import evaluate_model


class ServerValidation:
    """Scorer of models' arrays on validation data: the part ``validation`` of strategies.

    Parameters
    ----------
    model
        Model that takes the arrays; its own arrays are lost.
    data
        Validation data on the model's device, not empty.
    """

    def __init__(self, model: nn.Module, data: Split) -> None:
        if not len(data):
            raise ValueError(
                "no validation data: set server-validation-fraction above 0, such as 0.1"
            )
        self._model = model
        self._data = data

    def accuracy(self, arrays: Arrays) -> float:
        """Return a model's accuracy, a fraction."""
        load_arrays(self._model, arrays, keep_infinite=True)
        return evaluate_model(self._model, self._data)[1]

    def loss(self, arrays: Arrays) -> float:
        """Return a model's mean cross-entropy; not finite for a broken model."""
        load_arrays(self._model, arrays, keep_infinite=True)
        return evaluate_model(self._model, self._data)[0]

    @torch.no_grad()
    def batch_losses(self, arrays: Arrays, batch_size: int) -> list[float]:
        """Return a model's mean cross-entropy on each mini-batch, in the data's order.

        The last mini-batch may be smaller.
        """
        load_arrays(self._model, arrays, keep_infinite=True)
        features, labels, size = self._data.features, self._data.labels, EVALUATION_BATCH
        batches = (features[i : i + size] for i in range(0, len(features), size))
        with evaluation_mode(self._model):
            logits = torch.cat([self._model(batch) for batch in batches])
        each = functional.cross_entropy(logits, labels, reduction="none").tolist()
        starts = range(0, len(each), batch_size)
        return [fmean(each[start : start + batch_size]) for start in starts]
