"""Loss and scores of rows with several labels, 0 or 1 each: task ``multi-label``.

Models give a logit per label, ``[rows, labels]``, and predict those above 0. Scores that
are macro are means over the labels for which they are defined; micro ones count all cells
of the table alike.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.core.tasks import BY_LABEL
from fedsuite.training.losses import LossFunction

if TYPE_CHECKING:
    from fedsuite.training.loop import TrainingOptions


def loss(name: str, options: "TrainingOptions", labels: Tensor) -> LossFunction:
    """Return the mean binary cross-entropy over rows and labels."""

    def binary_cross_entropy(model: nn.Module, features: Tensor, own: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(features), own)

    return binary_cross_entropy


def scores(
    names: Sequence[str], outputs: Tensor, labels: Tensor, options: "TrainingOptions"
) -> Mapping[str, float]:
    """Return the named scores of logits ``[rows, labels]``."""
    from sklearn.metrics import f1_score, roc_auc_score

    logits, own = outputs.double().numpy(), labels.numpy().astype(int)
    number = own.shape[1]
    nan = float("nan")
    broken = not len(own) or not np.isfinite(logits).all()

    def auroc(truth: NDArray[Any], values: NDArray[Any]) -> float:
        one_sided = broken or np.ptp(truth) == 0
        return nan if one_sided else float(roc_auc_score(truth, values))

    def f1(truth: NDArray[Any], values: NDArray[Any]) -> float:
        return nan if broken else float(f1_score(truth, values, zero_division=0))

    said = (logits > 0).astype(int)
    aurocs = [auroc(own[:, k], logits[:, k]) for k in range(number)]
    f1s = [f1(own[:, k], said[:, k]) for k in range(number)]
    defined = [value for value in aurocs if value == value]
    scores: dict[str, float] = {
        "auroc": float(np.mean(defined)) if defined else nan,
        "macro-f1": float(np.mean(f1s)),
    }
    if "micro-auroc" in names:
        scores["micro-auroc"] = auroc(own.ravel(), logits.ravel())
    if "micro-f1" in names:
        scores["micro-f1"] = f1(own.ravel(), said.ravel())
    each = {}
    if BY_LABEL in names:
        each = {f"label-auroc-{k}": value for k, value in enumerate(aurocs)}
        each |= {f"label-f1-{k}": value for k, value in enumerate(f1s)}
    return {**{name: scores[name] for name in names if name in scores}, **each}
