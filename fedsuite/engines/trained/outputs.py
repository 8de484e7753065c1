"""From a network's outputs to what is predicted: one function for each task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsuite.core.errors import RunError
from fedsuite.results.model_facts import CLASSIFICATION

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


READINGS: Mapping[str, Callable[[Tensor, Sequence[str]], Columns]] = {
    CLASSIFICATION: class_predictions,
    "binary": class_predictions,
}
"""What a task makes of outputs ``[rows, ...]`` and the names of the classes."""


def read_outputs(task: str, outputs: Tensor, classes: Sequence[str]) -> Columns:
    """Return what is predicted.

    Parameters
    ----------
    task
        What the run was for.
    outputs
        The network's outputs for all rows.
    classes
        Names of the classes, in the order of the outputs.
    """
    if task not in READINGS:
        raise RunError(
            f"task {task!r:.40}: predictions of it are not known here: take run.model(), "
            "and read its outputs yourself"
        )
    return READINGS[task](outputs, classes)
