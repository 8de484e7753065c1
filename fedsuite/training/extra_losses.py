"""Terms that any method's local loss can take: FedDecorr's and FedLC's.

- Y. Shi, J. Liang, W. Zhang, V. Tan, S. Bai, "Towards Understanding and Mitigating
  Dimensional Collapse in Heterogeneous Federated Learning", ICLR 2023, arXiv:2210.00226.
  With the features x of a mini-batch (N rows, the inputs of the last linear layer), each
  column standardised by its unbiased deviation, and K = x^T x, the loss grows by
  beta / N times the mean of K_ij^2 over i != j, as in the authors' code. beta is
  ``decorrelation-weight``.
- J. Zhang, Z. Li, B. Li, J. Xu, S. Wu, S. Ding, C. Wu, "Federated Learning with Label
  Distribution Skew via Logits Calibration", ICML 2022, arXiv:2209.00189. The local loss
  sees the logits z_c - tau n_kc^(-1/4), with n_kc the client's rows of class c. tau is
  ``logit-calibration``.

Deviations. FedDecorr's scale is that of bytedance/FedDecorr, whose term grows with N; the
paper's is the squared Frobenius norm of the correlation matrix over the squared width.
FedLC's softmax is over all classes, as in the ports that we read; the denominator of the
paper's loss leaves the label's own class out. A class that a client has no row of counts as
1e-8 rows, so that its logit falls by 100 tau. With several forward passes in a step, the
features are those of the last one.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from fedsuite.models.features import linear_head
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.losses import LossFunction, refuse_sequences

FEWEST_ROWS = 1e-8
"""Rows that a class counts as of which a client has none."""


def decorrelation(features: Tensor) -> Tensor:
    """Return FedDecorr's term of features ``[rows, width]``, without its weight.

    It is (N - 1)^2 / N times the mean squared correlation of two columns: 0 where none are
    correlated, and for one row or one column.
    """
    rows, width = features.shape
    if rows < 2 or width < 2:
        return features.new_zeros(())
    centred = features - features.mean(dim=0)
    scaled = centred / torch.sqrt(features.var(dim=0) + 1e-8)
    # Of x^T x and x x^T, whose squares have one sum, the smaller.
    products = scaled.T @ scaled if width < rows else scaled @ scaled.T
    apart = products.square().sum() - scaled.square().sum(dim=0).square().sum()
    return apart / (width * (width - 1) * rows)


def calibration(labels: Tensor, num_classes: int, strength: float) -> Tensor:
    """Return what FedLC takes from each logit, ``[num_classes]``.

    Parameters
    ----------
    labels
        Classes of the client's training rows, ``[rows]``.
    num_classes
        Number of logits.
    strength
        tau, 0 or more.
    """
    counts = torch.bincount(labels, minlength=num_classes).to(torch.float32)
    return strength * counts.clamp_min(FEWEST_ROWS) ** -0.25


def loss_on(options: TrainingOptions, rows: Tensor) -> LossFunction:
    """Return the options' loss on a client's ``rows`` of labels: with FedLC's logits if on.

    ConfigError for sequences where a term is on.
    """
    loss, strength = options.loss_on(rows), options.logit_calibration
    if strength or options.decorrelation_weight:
        refuse_sequences(rows, "keys logit-calibration and decorrelation-weight need")
    if not strength:
        return loss

    # Once, and not in each step: the counts stay.
    margins = cache(partial(calibration, rows, strength=strength))

    def lowered(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        logits = model(features)
        return loss(nn.Identity(), logits - margins(logits.shape[1]), labels)

    return lowered


def decorrelated(loss: LossFunction, weight: float) -> LossFunction:
    """Return a loss with FedDecorr's term on the features of the last forward pass."""

    def whole(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        captured: list[Tensor] = []
        hook = linear_head(model)[1].register_forward_pre_hook(_noting(captured))
        try:
            total = loss(model, features, labels)
        finally:
            hook.remove()
        return total + weight * decorrelation(captured[-1])

    return whole


def _noting(captured: list[Tensor]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    """Return a hook that keeps the inputs of a layer."""
    return lambda _, received: captured.append(received[0])
