"""PropFair: proportional fairness, a logarithmic utility of each client's loss.

G. Zhang, S. Malekmohammadi, X. Chen, Y. Yu, "Proportional Fairness in Federated Learning",
TMLR 2023, arXiv:2202.01666.

Objective (PF): min_w -sum_k p_k log(M - F_k(w)), M > F_k a baseline. Clients minimise,
batch by batch, l the mean cross-entropy of a batch, the surrogate

    -log(1 - l / M)                                    where M - l >= epsilon,
    -log(epsilon / M) + (l - M + epsilon) / epsilon    else,

whose gradient is that of l divided by max(M - l, epsilon); the server averages as FedAvg
does.

Deviations: the constant log M makes the surrogate 0 at l = 0. The authors' code goes on
with l / M, not the tangent: batches past the threshold count 1 / M, not 1 / epsilon
(``propfair-extension = "code"``; the code's option ``huber`` has the tangent's gradient).
Where M = epsilon, as in FedEBA+'s table, both are FedAvg with the learning rate divided by
M.
"""

from typing import ClassVar, Literal

from fedsuite.method import TRAIN, Between, ClientNeeds, key
from fedsuite.strategies.averaging.fedavg import FedAvg

Extension = Literal["tangent", "code"]


class PropFair(FedAvg):
    """FedAvg whose clients minimise a logarithm of their distance from a baseline loss."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "PropFairClient", "minimises PropFair's logarithm of the loss"
    )

    propfair_baseline: float = key(
        default=2.0,
        help="baseline M; large, with learning-rate times M, is FedAvg",
        above=0.0,
        told=TRAIN,
        search=Between(1.5, 10.0),
    )
    propfair_threshold: float = key(
        default=0.2,
        help="distance from M where the loss turns linear",
        above=0.0,
        told=TRAIN,
    )
    propfair_extension: Extension = key(
        default="tangent", help="beyond it: the paper's tangent, or l / M", told=TRAIN
    )
