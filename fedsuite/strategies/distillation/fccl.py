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

Deviations. The order is FedAL's: the local phase, then exchanges of one step each with an
optimiser that stays. The code takes passes over the public data before the local phase, and
makes Adam anew for every batch. Pre-training (``fccl-pretrain-epochs``; 40 or 50 in the
code) is work that other methods do not get. Adam begins afresh after it, as in the code. It
is off by default, and its teacher is then left out; the previous model alone, at first a
random one, holds a client back for many rounds. A class whose logits, of the client or of
T, are constant over a batch has C = 0 and no gradient; ``constant_columns`` counts them. A
single client has nobody to correlate with, and only trains.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import MEAN_OUTPUTS, TRAIN, Arrays, Between, ClientNeeds, key
from fedsuite.strategies.distillation.public_exchange import (
    Feedback,
    PublicExchange,
    mean_outputs,
    output_divergence,
)

Spread = Literal["unbiased", "biased"]
Target = Literal["all", "others-and-previous"]


class FCCL(PublicExchange):
    """Mean logits come back, for clients to correlate theirs with."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FCCLClient", "answers with its outputs on public data"
    )

    fccl_off_diagonal: float = key(
        default=0.0051,
        help="weight of the terms between different classes; 0 has none",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.0005, 0.05),
    )
    fccl_std: Spread = key(
        default="unbiased", help="divisor of the variance: batch - 1, or batch", told=TRAIN
    )
    fccl_target: Target = key(
        default="all", help="mean, or with the previous model in own place", told=TRAIN
    )
    fccl_pretrain_epochs: int = key(
        default=0, help="epochs before round 1; 0 has no teacher", minimum=0, told=TRAIN
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 2:
            raise ValueError(
                f"a public batch of {self.batch_size} sample has no correlation: set "
                "public-batch-size and public-size to at least 2"
            )

    @override
    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        self.note(output_divergence=output_divergence(outputs))
        return Feedback({MEAN_OUTPUTS: mean_outputs(outputs)})
