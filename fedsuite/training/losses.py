"""Loss and accuracy of classifiers: one target per row, or one per position of a sequence.

T.-Y. Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017, arXiv:1708.02002:
the focal loss of a target with predicted probability p is -(1 - p)^gamma log p, here
without class weights; gamma = 0 is the cross-entropy.

A model gives ``[rows, classes]`` for labels ``[rows]``, and ``[rows, length, classes]`` for
labels ``[rows, length]``. Means are over targets; those that are
:data:`~fedsuite.data.specs.IGNORED` do not count.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.core.errors import ConfigError
from fedsuite.data.specs import IGNORED

LossFunction = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Mean loss of a mini-batch from model, features and labels."""


def count_targets(labels: Tensor) -> int:
    """Return how many targets count; a row of floats is one target."""
    if labels.ndim == 1 or labels.is_floating_point():
        return len(labels)
    return int((labels != IGNORED).sum())


def cross_entropy(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a model's outputs; 0 where no target counts."""
    outputs = model(features)
    if labels.ndim == 1:
        return functional.cross_entropy(outputs, labels)
    return _mean(summed_cross_entropy(outputs, labels), labels)


def focal_loss(
    model: nn.Module, features: Tensor, labels: Tensor, gamma: float = 2.0
) -> Tensor:
    """Return the mean focal loss of a model's outputs; 0 where no target counts."""
    outputs = model(features).flatten(0, -2)
    targets = labels.flatten()
    losses = functional.cross_entropy(
        outputs, targets, reduction="none", ignore_index=IGNORED
    )
    # 1 - p from log p, exact where p is near 1; above 0, for the slope of a root is not
    # finite there, and the losses of ignored targets are 0.
    wrong = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)
    return _mean((wrong**gamma * losses).sum(), labels)


def summed_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the cross-entropy over all targets that count."""
    if labels.ndim > 1:
        outputs, labels = outputs.flatten(0, -2), labels.flatten()
    return functional.cross_entropy(outputs, labels, reduction="sum", ignore_index=IGNORED)


def right_targets(
    outputs: Tensor, labels: Tensor, never_right: int | None = None
) -> Tensor:
    """Return whether each target is predicted, in the shape of the labels.

    Targets that do not count are never right, nor is the label ``never_right``, which
    counts.
    """
    right = outputs.argmax(dim=-1) == labels
    return right if never_right is None else right & (labels != never_right)


def right_rows(outputs: Tensor, labels: Tensor, never_right: int | None = None) -> Tensor:
    """Return whether all targets of each row that count are predicted, ``[rows]``."""
    right = right_targets(outputs, labels, never_right)
    return right if labels.ndim == 1 else (right | (labels == IGNORED)).all(dim=-1)


def refuse_sequences(labels: Tensor, needs: str) -> None:
    """Refuse labels of sequences, for methods that need one class per row.

    Raises
    ------
    ConfigError
        With ``needs``, which says what does, and that it does.
    """
    # Several labels of a row, or its time and event, are floats.
    if labels.ndim > 1 and not labels.is_floating_point():
        raise ConfigError(
            f"{needs} one class per row, which this data set of sequences does not "
            "have: choose another method or data set"
        )


def _mean(total: Tensor, labels: Tensor) -> Tensor:
    return total / max(count_targets(labels), 1)
