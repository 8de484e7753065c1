"""Local self-regularisation (LSR): a client-side loss that resists noisy labels.

X. Jiang, S. Sun, Y. Wang, M. Liu, "Towards Federated Learning against Noisy Labels via
Local Self-Regularization", CIKM 2022, arXiv:2208.12807; used by FedEBA+ (its appendix D).

Equations used, with p1, p2 the softmax outputs on a batch and on a random view of it:

- p = m p1 + (1 - m) p2 with m ~ Beta(1, 1), one draw per batch;
- p_s = p^(1 / T_s), normalised: sharpened;
- F_cls = -log p_s[label], the mean over the batch;
- F_reg = Jensen-Shannon divergence of softmax(logits / T_d) of the two views, Eq. (31);
- F = F_cls + gamma F_reg, Eq. (29).

FedEBA+'s gamma, T_s, T_d and views are not published; the defaults are those of the LSR
authors' public code. Deviations from that code: no entropy term (FedEBA+ has none), and
the negative log-likelihood of p_s, where the code applies a second softmax to it.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.core.keys import Unless
from fedsuite.core.settings import Settings, key
from fedsuite.training.augmentation import augment

_ON = (Unless("lsr-gamma", 0.0),)


class LSROptions(Settings):
    """Options of LSR."""

    lsr_gamma: float = key(
        default=0.0,
        help="weight of local self-regularisation, which resists noisy labels; 0 is plain "
        "cross-entropy; 0.4 in its authors' code",
        minimum=0.0,
    )
    lsr_sharpening: float = key(
        default=0.5,
        help="temperature that the mixed prediction is sharpened with; 1 leaves it as it "
        "is",
        above=0.0,
        needs=_ON,
    )
    lsr_distillation: float = key(
        default=1 / 3,
        help="temperature at which the two views' predictions are compared",
        above=0.0,
        needs=_ON,
    )
    lsr_ramp_rounds: int = key(
        default=0,
        help="rounds over which lsr-gamma grows from 0 in round 1 to its value; 0 is at "
        "once",
        minimum=0,
        needs=_ON,
    )

    def gamma_at(self, server_round: int) -> float:
        """Return the weight of F_reg in a round, counted from 1."""
        if self.lsr_ramp_rounds == 0:
            return self.lsr_gamma
        return self.lsr_gamma * min((server_round - 1) / self.lsr_ramp_rounds, 1.0)


def classification_loss(
    logits: Tensor, view_logits: Tensor, labels: Tensor, mix: Tensor, sharpening: float
) -> Tensor:
    """Return F_cls of outputs ``[n, classes]`` on the batch and on its view.

    ``mix`` is m, the share of the batch's own prediction; ``sharpening`` is T_s.
    """
    own = functional.log_softmax(logits, dim=1) + torch.log(mix)
    other = functional.log_softmax(view_logits, dim=1) + torch.log1p(-mix)
    mixed = torch.logaddexp(own, other)
    return functional.cross_entropy(mixed / sharpening, labels)


def regularisation_loss(logits: Tensor, view_logits: Tensor, distillation: float) -> Tensor:
    """Return F_reg, the difference of the two views' predictions, 0 to log 2."""
    first = functional.log_softmax(logits / distillation, dim=1)
    second = functional.log_softmax(view_logits / distillation, dim=1)
    middle = torch.logaddexp(first, second) - math.log(2)
    return (_divergence(first, middle) + _divergence(second, middle)) / 2


def _divergence(first: Tensor, second: Tensor) -> Tensor:
    """Return KL(first || second) of log-probabilities, the mean over the batch."""
    return functional.kl_div(second, first, reduction="batchmean", log_target=True)


class SelfRegularisation:
    """LSR on inputs that, times ``std`` plus ``mean``, are pixels in 0 to 1."""

    def __init__(
        self,
        options: LSROptions,
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
    ) -> None:
        self.options = options
        self._mean = mean
        self._std = std

    def loss(
        self,
        model: nn.Module,
        features: Tensor,
        labels: Tensor,
        server_round: int,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the mean loss F of a mini-batch in a round.

        The CPU generator makes the views and the mix.
        """
        options = self.options
        view = self.view(features, generator)
        mix = torch.rand((), generator=generator).to(features.device)
        logits, view_logits = model(features), model(view)
        classified = classification_loss(
            logits, view_logits, labels, mix, options.lsr_sharpening
        )
        apart = regularisation_loss(logits, view_logits, options.lsr_distillation)
        return classified + options.gamma_at(server_round) * apart

    @torch.no_grad()
    def view(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of a batch, in its own scaling."""
        shape = (1, -1, 1, 1) if features.ndim == 4 else (-1,)
        mean = features.new_tensor(self._mean).reshape(shape)
        std = features.new_tensor(self._std).reshape(shape)
        return (augment(features * std + mean, generator) - mean) / std
