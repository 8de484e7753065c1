"""Losses and scores of rows with one number each: task ``regression``.

Models give ``[rows, 1]``. Of Huber's loss see P. Huber, "Robust Estimation of a Location
Parameter", 1964; of the quantile loss R. Koenker, G. Bassett, "Regression Quantiles", 1978.
The coverage is the share of rows whose number is no larger than what is predicted, and the
coverage error how far it lies from the key ``quantile``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.training.losses import LossFunction

if TYPE_CHECKING:
    from fedsuite.training.loop import TrainingOptions


def loss(name: str, options: "TrainingOptions", labels: Tensor) -> LossFunction:
    """Return the mean loss of predicted numbers."""

    def quantile(predicted: Tensor, numbers: Tensor) -> Tensor:
        below = numbers - predicted
        return torch.maximum(
            options.quantile * below, (options.quantile - 1) * below
        ).mean()

    def huber(predicted: Tensor, numbers: Tensor) -> Tensor:
        return functional.huber_loss(predicted, numbers, delta=options.huber_delta)

    means: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "squared": functional.mse_loss,
        "absolute": functional.l1_loss,
        "huber": huber,
        "quantile": quantile,
    }
    mean = means[name]

    def of_model(model: nn.Module, features: Tensor, numbers: Tensor) -> Tensor:
        return mean(model(features).squeeze(-1), numbers)

    return of_model


def scores(
    names: Sequence[str], outputs: Tensor, labels: Tensor, options: "TrainingOptions"
) -> Mapping[str, float]:
    """Return the named scores of predictions ``[rows, 1]``; R2 of equal numbers is NaN."""
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    predicted, numbers = outputs.double().squeeze(-1).numpy(), labels.double().numpy()
    if not len(numbers) or not np.isfinite(predicted).all():
        return dict.fromkeys(names, float("nan"))

    def r2() -> float:
        return float(r2_score(numbers, predicted)) if np.ptp(numbers) > 0 else float("nan")

    def coverage_error() -> float:
        return abs(float((numbers <= predicted).mean()) - options.quantile)

    known: dict[str, Callable[[], float]] = {
        "mae": lambda: float(mean_absolute_error(numbers, predicted)),
        "rmse": lambda: float(root_mean_squared_error(numbers, predicted)),
        "r2": r2,
        "coverage-error": coverage_error,
    }
    return {name: known[name]() for name in names}
