"""FedDisco: clients whose labels are distributed like the target's count more.

R. Ye, M. Xu, J. Wang, C. Xu, S. Chen, Y. Wang, "FedDisco: Federated Learning with
Discrepancy-Aware Collaboration", ICML 2023.

With p_k = n_k / n over the clients of the round and d_k the discrepancy between a client's
label frequencies and the target's (Eq. 8):

    omega_k = max(p_k - a d_k + b, 0) / sum_j max(p_j - a d_j + b, 0).

Deviations: the target is the uniform distribution. d is the KL divergence from it, divided
by its sum over the round as in the authors' code, or the Euclidean distance, undivided, as
in FedEBA+'s paper. Clients send d_k alone, not their label counts. Where every weight is 0
they are FedAvg's; the authors' code fails there.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    SHARES_OF_PAPERS,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    GatheredStrategy,
    OneOf,
    Value,
    Vector,
    examples_of,
    key,
    metric_of,
    share_ratio_key,
)

DISCREPANCY = "discrepancy"

Measure = Literal["kl", "l2"]


def shares_of_sum(values: Vector) -> Vector:
    """Return values >= 0 divided by their sum; zeros stay zeros."""
    largest = values.max()
    if largest == 0:
        return values
    relative = values / largest
    shares: Vector = relative / relative.sum()
    return shares


def discrepancy_weights(
    examples: Vector, discrepancies: Vector, a: float, b: float
) -> Vector:
    """Return omega_k up to a common factor, ``[clients]``; n_k where a = b = 0.

    Large b with a = 0 approaches equal weights; all of ``examples`` n_k are > 0.
    """
    with np.errstate(over="ignore"):
        weights = np.maximum(examples + examples.sum() * (b - a * discrepancies), 0.0)
    return weights if weights.any() else examples


class FedDISCO(GatheredStrategy):
    """FedAvg with weights lowered by how far a client's labels are from uniform."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDISCOClient", "measures its labels"
    )

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {}

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    max_share_ratio: float | str = share_ratio_key()

    feddisco_a: float = key(
        default=0.5,
        help="weight a of a client's discrepancy; 0 with b = 0 is FedAvg",
        minimum=0.0,
        search=Between(0.05, 2.0),
    )
    feddisco_b: float = key(
        default=0.1,
        help="added to each client's share",
        minimum=0.0,
        search=OneOf(0.0, 0.05, 0.1, 0.2),
    )
    feddisco_measure: Measure = key(
        default="kl", help="distance from uniform: KL divergence or Euclidean", told=TRAIN
    )

    @override
    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        return {DISCREPANCY: (0.0, math.inf)}

    @override
    def claims(self) -> Collection[str]:
        return (DISCREPANCY,)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        discrepancies = metric_of(replies, DISCREPANCY)
        if self.feddisco_measure == "kl":
            discrepancies = shares_of_sum(discrepancies)
        examples = examples_of(replies)
        weights = discrepancy_weights(
            examples, discrepancies, self.feddisco_a, self.feddisco_b
        )
        return self.average(replies, weights)
