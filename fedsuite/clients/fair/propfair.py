"""Client of PropFair: a logarithmic surrogate of each mini-batch's loss."""

import math

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import FederatedClient, Told


def proportional_loss(
    loss: Tensor, baseline: float, threshold: float, extension: str
) -> Tensor:
    """Return PropFair's surrogate of a batch's mean loss l >= 0, a scalar.

    With baseline M > 0 and threshold epsilon > 0 it is -log(1 - l / M) where M - l >=
    epsilon. Beyond, the extension ``tangent`` is -log(epsilon / M) + (l - M + epsilon) /
    epsilon, and ``code`` l / M.
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

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss(model, features, labels)
        baseline, threshold = self.propfair_baseline, self.propfair_threshold
        return proportional_loss(loss, baseline, threshold, self.propfair_extension)
