"""From a network's outputs to what is predicted: one function for each task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsuite.core.errors import RunError
from fedsuite.core.tasks import LOG_HAZARD_RATIO

Columns = dict[str, npt.NDArray[Any]]
"""What is predicted: name to one value a row."""

PREDICTION = "prediction"


def class_predictions(outputs: Tensor, classes: Sequence[str]) -> Columns:
    """Return the likeliest class of each row, and the probability of each class."""
    if outputs.ndim != 2 or outputs.shape[1] != len(classes):
        raise RunError(
            f"the network's outputs are of shape {list(outputs.shape)}, and one row of "
            f"{len(classes)} logits for each input was expected: take run.model(), and "
            "read its outputs yourself"
        )
    probabilities = torch.softmax(outputs.double(), dim=1).numpy()
    names = np.array(classes, dtype=object)[outputs.argmax(dim=1).numpy()]
    of_class = zip(classes, probabilities.T, strict=True)
    return {PREDICTION: names, **{f"probability {name}": p for name, p in of_class}}


def label_predictions(outputs: Tensor, labels: Sequence[str]) -> Columns:
    """Return whether each label holds, and its probability."""
    probabilities = torch.sigmoid(outputs.double()).numpy()
    of_label = list(zip(labels, probabilities.T, strict=True))
    held = {f"{PREDICTION} {name}": (p > 0.5).astype(int) for name, p in of_label}
    return {**held, **{f"probability {name}": p for name, p in of_label}}


def number_predictions(outputs: Tensor, _: Sequence[str]) -> Columns:
    """Return the predicted number of each row."""
    return {PREDICTION: outputs.double().flatten().numpy()}


def survival_predictions(outputs: Tensor, names: Sequence[str]) -> Columns:
    """Return each row's log hazard ratio, or its survival to the end of each interval."""
    if tuple(names) == (LOG_HAZARD_RATIO,):
        return {LOG_HAZARD_RATIO: outputs.double().flatten().numpy()}
    survival = torch.exp(-torch.nn.functional.softplus(outputs.double()).cumsum(1)).numpy()
    return dict(zip(names, survival.T, strict=True))


READINGS: Mapping[str, Callable[[Tensor, Sequence[str]], Columns]] = {
    "classification": class_predictions,
    "binary": class_predictions,
    "multi-label": label_predictions,
    "regression": number_predictions,
    "survival": survival_predictions,
}
"""What a task makes of outputs ``[rows, ...]`` and their names, as of the classes."""
