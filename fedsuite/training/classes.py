"""Losses and scores of rows with one class each: tasks ``classification`` and ``binary``.

With class weights a target of class c counts w_c times, and means are over the weights, as
torch's cross-entropy has it. ``balanced`` is w_c = n / (C n_c), of the client's own n rows,
C classes and n_c rows of class c; a class without rows counts as one with one row.

Scores of one client's rows, by scikit-learn where it has them:

- AUROC and AUPRC of two classes are those of class 1. Of more classes they are means of
  each class against the rest, over the classes for which they are defined.
- The Brier score is half the mean over rows of sum_c (p_c - y_c)^2: of two classes the mean
  of (p - y)^2, and between 0 and 1 always.
- The calibration error is the expected one of C. Guo et al., "On Calibration of Modern
  Neural Networks", ICML 2017, arXiv:1706.04599, Eq. (3), with 15 bins of equal width.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.core.errors import ConfigError
from fedsuite.core.tasks import BALANCED, CONFUSION
from fedsuite.data.specs import IGNORED
from fedsuite.training.losses import LossFunction, cross_entropy, focal_loss

if TYPE_CHECKING:
    from fedsuite.training.loop import TrainingOptions

_BINS = 15
_MOST_CLASSES = 20
"""Classes of a confusion matrix, whose cells are sent as metrics of their own."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def loss(name: str, options: "TrainingOptions", labels: Tensor) -> LossFunction:
    """Return cross-entropy or focal loss, with the client's class weights."""
    gamma = options.focal_gamma
    if not options.class_weights:
        return partial(focal_loss, gamma=gamma) if name == "focal" else cross_entropy
    weights = cache(partial(class_weights, options.class_weights, labels))

    def weighted(model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = model(features).flatten(0, -2), targets.flatten()
        weight = weights(outputs.shape[-1]).to(outputs.device)
        losses = functional.cross_entropy(
            outputs, targets, reduction="none", ignore_index=IGNORED
        )
        if name == "focal":
            wrong = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)
            losses = wrong**gamma * losses
        share = torch.where(targets == IGNORED, 0.0, weight[targets.clamp_min(0)])
        return (share * losses).sum() / share.sum().clamp_min(1e-12)

    return weighted


def class_weights(text: str, labels: Tensor, num_classes: int) -> Tensor:
    """Return the weight of each class, ``[num_classes]``.

    Parameters
    ----------
    text
        Value of the key ``class-weights``.
    labels
        The client's training labels.
    num_classes
        Number of classes.

    Raises
    ------
    ConfigError
        If there are not as many weights as classes.
    """
    if text == BALANCED:
        counted = labels[labels != IGNORED].cpu()
        counts = torch.bincount(counted, minlength=num_classes).clamp_min(1)
        return (len(counted) / (num_classes * counts)).to(torch.float32)
    weights = torch.tensor([float(part) for part in text.split(",")])
    if len(weights) != num_classes:
        raise ConfigError(
            f"key class-weights = {text!r}: {len(weights)} weights, and the data set has "
            f"{num_classes} classes: give one for each, or {BALANCED!r}"
        )
    return weights


def scores(
    names: Sequence[str], outputs: Tensor, labels: Tensor, options: "TrainingOptions"
) -> Mapping[str, float]:
    """Return the named scores of logits ``[rows, classes]``."""
    outputs, targets = outputs.flatten(0, -2), labels.flatten()
    counts = targets != IGNORED
    rows = _Rows(outputs[counts].double().softmax(-1).numpy(), targets[counts].numpy())
    scores: dict[str, float] = {}
    for name in names:
        if name == CONFUSION:
            scores |= rows.confusion()
        elif not len(rows.labels) or not np.isfinite(rows.probabilities).all():
            scores[name] = float("nan")
        else:
            scores[name] = float(getattr(rows, name.replace("-", "_"))())
    return scores


class _Rows:
    """Probabilities ``[rows, classes]`` and classes of rows."""

    def __init__(self, probabilities: Floats, labels: Ints) -> None:
        self.probabilities = probabilities
        self.labels = labels
        self.predicted: Ints = probabilities.argmax(axis=1)
        self.num_classes = probabilities.shape[1]

    def accuracy(self) -> float:
        return float((self.predicted == self.labels).mean())

    def balanced_accuracy(self) -> float:
        return self._recall("macro", labels=np.unique(self.labels))

    def macro_f1(self) -> float:
        from sklearn.metrics import f1_score

        return float(
            f1_score(self.labels, self.predicted, average="macro", zero_division=0)
        )

    def sensitivity(self) -> float:
        return self._recall(None, labels=[1]) if (self.labels == 1).any() else np.nan

    def specificity(self) -> float:
        return self._recall(None, labels=[0]) if (self.labels == 0).any() else np.nan

    def _recall(self, average: str | None, labels: Any) -> float:
        from sklearn.metrics import recall_score

        recall = recall_score(self.labels, self.predicted, labels=labels, average=average)
        return float(np.mean(recall))

    def auroc(self) -> float:
        from sklearn.metrics import roc_auc_score

        return self._against_the_rest(roc_auc_score)

    def auprc(self) -> float:
        from sklearn.metrics import average_precision_score

        return self._against_the_rest(average_precision_score)

    def _against_the_rest(self, score: Any) -> float:
        classes = [1] if self.num_classes == 2 else range(self.num_classes)
        each = [
            score(self.labels == c, self.probabilities[:, c])
            for c in classes
            if 0 < (self.labels == c).sum() < len(self.labels)
        ]
        return float(np.mean(each)) if each else np.nan

    def brier(self) -> float:
        apart = self.probabilities - np.eye(self.num_classes)[self.labels]
        return float((apart**2).sum(axis=1).mean() / 2)

    def calibration_error(self) -> float:
        confidence = self.probabilities.max(axis=1)
        bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
        gaps = np.bincount(bins, (self.predicted == self.labels) - confidence)
        return float(np.abs(gaps).sum() / len(self.labels))

    def confusion(self) -> dict[str, float]:
        """Return rows by class and predicted class, ``confusion-CLASS-PREDICTED``."""
        from sklearn.metrics import confusion_matrix

        count = self.num_classes
        if count > _MOST_CLASSES:
            raise ConfigError(
                f"key scores: {CONFUSION} of {count} classes: at most {_MOST_CLASSES} are "
                "told; leave it out"
            )
        if not len(self.labels):
            cells: Any = np.zeros((count, count), int)
        else:
            cells = confusion_matrix(self.labels, self.predicted, labels=range(count))
        return {
            f"confusion-{c}-{p}": int(cells[c, p])
            for c in range(count)
            for p in range(count)
        }
