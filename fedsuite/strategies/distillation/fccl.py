"""FCCL: clients' outputs on public data are to correlate class by class.

W. Huang, M. Ye, B. Du, "Learn from Others and Be Yourself in Heterogeneous Federated
Learning", CVPR 2022, whose code, WenkeHuang/FCCL, settles what the paper leaves open.

Equations. With F_n client n's logits on a public batch of B, and T the mean over clients,

- Z = (F - mean) / std over the batch, class by class, of F_n and of T: Z_n and Z_T;
- C = Z_n' Z_T / B, classes by classes;
- transfer: sum_k (C_kk - 1)^2 + lambda sum_{k != j} (C_kj + 1)^2, T constant;
- local phase: cross-entropy + KL(previous, own) + KL(pre-trained, own), of softmaxes. The
  teachers, in evaluation mode, are the client's model as its last local phase left it (in
  the first round, as it began) and as pre-training left it.

With ``fccl-target`` others-and-previous the client's own part of the mean is that of its
previous model, in evaluation mode: T = F - (F_n - F_n_previous) / N, which the client
works out of the mean F. With ``fccl-std`` unbiased, torch's default and the code's, C_kk of
clients that agree is (B - 1) / B and not 1.

Known to hold: no positive affine map of a class's logits changes the transfer loss. It is
not 0 where clients agree: for K classes at least lambda K (K - 2)^2 / (K - 1).

Deviations. The order is FedAL's, the local phase before the exchanges, each of which is one
step of an optimiser that stays; the code takes passes over the public data, before the
local phase, and makes Adam anew for every batch. Pre-training (``fccl-pretrain-epochs``;
40 or 50 in the code) is work that other methods do not get. Adam begins afresh after it, as
in the code: no moment of pre-training lasts. It is off by default, and its teacher then is
left out; the previous model alone, which at first is a random one, holds a client back for
many rounds. A class whose logits, of the client or of T, are constant over a batch has no
correlation: C is 0 there, no gradient comes from it, and the event is counted in
``constant_columns``. A single client has nobody to correlate with, and only trains.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Unpack, get_args

from fedsuite.core.keys import Key, Value
from fedsuite.messages.records import MEAN_OUTPUTS, Arrays
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.strategies.distillation.public_exchange import (
    DEFAULTS,
    ExchangeOptions,
    Feedback,
    PublicExchange,
    mean_outputs,
    output_divergence,
)

Spread = Literal["unbiased", "biased"]
Target = Literal["all", "others-and-previous"]

OFF_DIAGONAL = Key(
    "fccl-off-diagonal",
    0.0051,
    "weight of FCCL's terms between different classes; 0 has none",
    minimum=0.0,
)
SPREAD = Key(
    "fccl-std",
    "unbiased",
    "standard deviation that FCCL divides by, over batch - 1 or over the batch",
    choices=get_args(Spread),
)


class CorrelationOptions(ExchangeOptions, total=False):
    """Keywords that :class:`FCCL` and FCCL+ share."""

    fccl_off_diagonal: float
    fccl_std: Spread


class FCCL(PublicExchange):
    """Mean logits come back, for clients to correlate theirs with.

    Parameters
    ----------
    fccl_off_diagonal
        lambda, the weight of the terms between different classes.
    fccl_std
        ``unbiased`` or ``biased``.
    fccl_target
        ``all``: the mean over clients; ``others-and-previous``: in it the client's own part
        is of its previous model.
    fccl_pretrain_epochs
        Passes of each client over its data before its first local phase; 0 has none, nor
        the teacher that they make.
    options
        Keywords of
        :class:`~fedsuite.strategies.distillation.public_exchange.PublicExchange`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FCCLClient", "answers with its outputs on public data"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *PublicExchange.KEYS,
        OFF_DIAGONAL,
        SPREAD,
        Key(
            "fccl-target",
            "all",
            "what FCCL's clients correlate with: the mean, or it with the previous model "
            "in the client's own place",
            choices=get_args(Target),
        ),
        Key(
            "fccl-pretrain-epochs",
            0,
            "passes over a client's data before FCCL's first round, which other methods do "
            "not get; 0 leaves their teacher out",
            minimum=0,
        ),
    )
    DEFAULTS: ClassVar[Mapping[str, Value]] = DEFAULTS

    def __init__(
        self,
        *,
        fccl_off_diagonal: float = 0.0051,
        fccl_std: Spread = "unbiased",
        fccl_target: Target = "all",
        fccl_pretrain_epochs: int = 0,
        **options: Unpack[ExchangeOptions],
    ) -> None:
        super().__init__(**options)
        if self.batch_size < 2:
            raise ValueError(
                f"a public batch of {self.batch_size} sample has no correlation: set "
                "public-batch-size and public-size to at least 2"
            )
        self.settings |= {
            "fccl-off-diagonal": fccl_off_diagonal,
            "fccl-std": fccl_std,
            "fccl-target": fccl_target,
            "fccl-pretrain-epochs": fccl_pretrain_epochs,
        }

    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        """Return the mean of what clients sent."""
        self.note(output_divergence=output_divergence(outputs))
        return Feedback({MEAN_OUTPUTS: mean_outputs(outputs)})
