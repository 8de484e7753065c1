"""APFL: each client mixes a model of its own with the global one, and learns the share.

Y. Deng, M. M. Kamani, M. Mahdavi, "Adaptive Personalized Federated Learning",
arXiv:2003.13461.

Equations used: a client is served v' = alpha v + (1 - alpha) w. On each mini-batch it takes
w <- w - eta grad F(w) and v <- v - eta alpha grad F(v'). At the first step of a round also
alpha <- alpha - eta <v - w, grad F(v')>, clipped to 0..1, all with the old v, w and alpha.
The server averages w as FedAvg does.

Known to hold: w is FedAvg's, bit for bit; with a fixed alpha of 1 the client's own model is
Standalone's.

Deviations: local optimisers other than plain SGD step v as they step w. The paper's mean of
w is plain, here clients weigh by examples. In PFLlib and FL-bench, which cite the code
FedTorch, alpha's gradient is <v - w, alpha grad at v + (1 - alpha) grad at w> + 0.02 alpha;
the pull to 0 is not in the paper, nor here. PFLlib also trains v on its own loss, moves
alpha at every step, and writes the mixture into v after each round. FL-bench mixes outputs,
not parameters.
"""

from typing import ClassVar

from fedsuite.method import (
    EVALUATE,
    TRAIN,
    UNARGUED,
    ClientNeeds,
    OneOf,
    Release,
    ScoredModel,
    key,
)
from fedsuite.strategies.averaging.fedavg import FedAvg


class APFL(FedAvg):
    """FedAvg whose clients are served a mixture of their own model and the global one."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "APFLClient", "keeps a model of its own and the share of it", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    PRIVACY: ClassVar[Release] = UNARGUED
    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    apfl_alpha: float = key(
        default=0.5,
        help="share of the own model at first; 0 and fixed is FedAvg",
        minimum=0.0,
        maximum=1.0,
        told=f"{TRAIN} {EVALUATE}",
        search=OneOf(0.25, 0.5, 0.75),
    )
    apfl_adaptive: bool = key(
        default=True, help="whether clients learn the share of their own model", told=TRAIN
    )
