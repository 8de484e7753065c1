"""Client of PropFair: a logarithmic surrogate of each mini-batch's loss."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fedsuite.core.errors import RunError
from fedsuite.messages.records import Reply, Request
from fedsuite.training.base import FederatedClient


def proportional_loss(
    loss: Tensor, baseline: float, threshold: float, extension: str
) -> Tensor:
    """Return PropFair's surrogate of a batch's loss.

    Parameters
    ----------
    loss
        Mean loss l of the batch, a scalar, >= 0.
    baseline
        M > 0.
    threshold
        epsilon > 0. Where M - l >= epsilon the value is -log(1 - l / M).
    extension
        Beyond: ``tangent``, -log(epsilon / M) + (l - M + epsilon) / epsilon, or
        ``code``, l / M.
    """
    if float(loss.detach()) <= baseline - threshold:
        return -torch.log1p(-loss / baseline)
    if extension == "code":
        return loss / baseline
    return (loss - baseline + threshold) / threshold - math.log(threshold / baseline)


class PropFairClient(FederatedClient):
    """Minimises the surrogate, and reports it as its training loss.

    M, epsilon and the extension come with the message as ``propfair-baseline``,
    ``propfair-threshold`` and ``propfair-extension``.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._baseline = self._threshold = 0.0
        self._extension = ""

    def on_train(self, request: Request) -> Reply:
        """Read what the strategy sent, then train."""
        self._baseline = self._positive(request, "propfair-baseline")
        self._threshold = self._positive(request, "propfair-threshold")
        self._extension = str(request.config.get("propfair-extension", "tangent"))
        return super().on_train(request)

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """Return the surrogate of the batch's cross-entropy."""
        plain = super().loss(model, features, labels)
        return proportional_loss(plain, self._baseline, self._threshold, self._extension)

    def _positive(self, request: Request, name: str) -> float:
        value = request.config.get(name)
        if not isinstance(value, int | float) or not value > 0:
            raise RunError(
                f"client {self.client_id}: the message has no number {name} > 0: use the "
                "strategy PropFair, or put it into the config"
            )
        return float(value)
