"""FCCL+: FCCL, with how similar samples are to each other beside their classes.

W. Huang, M. Ye, Z. Shi, B. Du, "Generalizable Heterogeneous Federated Cross-Correlation
and Instance Similarity Learning", IEEE TPAMI 2024, arXiv:2309.16286; the code is
WenkeHuang/FCCL, folder ``fccl+``.

Equations, beside those of FCCL. With h_n client n's features, what comes into the
classifier of its model, on a public batch,

- S_n: cosines of h_n of each sample with each other one, ``[batch, batch - 1]``;
- transfer: FCCL's loss + omega KL(softmax(mean_n S_n / mu), softmax(S_n / mu)), the mean
  over samples;
- local phase: cross-entropy + T^2 sum_{k != y} p_k log(p_k / q_k), the mean over samples,
  with q and p the softmaxes at T of the model's logits and of those of the client's model
  as its last local phase left it; y is the label.

Known to hold: with omega 0 a transfer step is FCCL's; the scale of features changes
nothing.

Deviations, beside those of FCCL. p and q over the other classes do not sum to 1, as in the
code: the term may be negative, and where the two models agree it is 0 but its slope takes
probability from the label. ``fccl-plus-renormalise`` makes them sum to 1, and that slope 0.
Cosines travel, which the server clips to their bound of 1, and mu divides them on arrival;
the code divides first. The teacher is in evaluation mode; in the code its running
statistics drift. Features and logits are of one forward pass, in the code of two. Clients
with equal networks do not average their parameters as in the code: no model leaves a
client. There is no pre-training.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    LOGITS,
    SIMILARITIES,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    RecordSpec,
    Unless,
    given,
    key,
)
from fedsuite.strategies.distillation.fccl import FCCL, Target
from fedsuite.strategies.distillation.public_exchange import Feedback


class FCCLPlus(FCCL):
    """Mean logits and mean similarities come back."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FCCLPlusClient", "answers with its outputs on public data"
    )
    FEATURE_WEIGHT: ClassVar[str] = "fccl-plus-similarity-weight"

    fccl_target: Target = given(default="all", help="as in FCCL", told=TRAIN)
    fccl_pretrain_epochs: int = given(default=0, help="as in FCCL", told=TRAIN)
    fccl_plus_similarity_weight: float = key(
        default=3.0,
        help="weight of the similarities of samples; 0 leaves them out",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.3, 30.0),
    )
    fccl_plus_similarity_temperature: float = key(
        default=0.02,
        help="softmax temperature of similarities",
        above=0.0,
        needs=(Unless("fccl-plus-similarity-weight", 0.0),),
        told=TRAIN,
    )
    fccl_plus_renormalise: bool = key(
        default=False, help="make predictions for the other classes sum to 1", told=TRAIN
    )
    distillation_temperature: float = key(
        default=3.0, help="softmax temperature of distillation", above=0.0, told=TRAIN
    )

    @override
    def output_spec(self) -> RecordSpec:
        shape = self.batch_size, self.batch_size - 1
        return {**super().output_spec(), SIMILARITIES: (shape, "float32")}

    @override
    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        held = {
            client_id: {
                LOGITS: arrays[LOGITS],
                SIMILARITIES: np.clip(arrays[SIMILARITIES], -1, 1),
            }
            for client_id, arrays in outputs.items()
        }
        return super().feedback(held, step)
