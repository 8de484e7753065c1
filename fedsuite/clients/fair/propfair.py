"""Client of PropFair: a logarithmic surrogate of each mini-batch's loss."""

import math

import torch
from torch import Tensor, nn

from fedsuite.training.base import FederatedClient
from fedsuite.training.told import Told


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
    """Minimises the surrogate, and reports it as its training loss."""

    propfair_baseline = Told(float)
    propfair_threshold = Told(float)
    propfair_extension = Told(str)

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """Return the surrogate of the batch's cross-entropy."""
        return proportional_loss(
            super().loss(model, features, labels),
            self.propfair_baseline,
            self.propfair_threshold,
            self.propfair_extension,
        )
