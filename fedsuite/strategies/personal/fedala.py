"""FedALA: each client learns how much of the received upper layers it takes.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan, "FedALA: Adaptive Local
Aggregation for Personalized Federated Learning", AAAI 2023, arXiv:2212.01197.

Equations used: before it trains, client k takes the lower layers of the received model w.
Of the upper ones, with its own model theta_k of its last training, it takes

    theta' = theta_k + (w - theta_k) W_k,   W_k in 0..1, elementwise, 1 at first,
    W_k <- clip(W_k - eta_W grad F(theta') (w - theta_k)),

by mini-batches of a part of its rows. The first time it makes passes until the standard
deviation of the last 10 losses is below 0.1, later one pass. Then it trains theta' as
usual, keeps it as theta_k with W_k, and sends it. The server averages as FedAvg does.

Known to hold: eta_W = 0 is FedAvg, bit for bit, and so is the first round of all, in which
w = theta_k. Deviations from PFLlib: at most 50 passes, where its code can go on for ever; a
loss is the mean of a pass, not of its last mini-batch; rows are drawn one by one, not as a
window. Running statistics are those received. As in PFLlib the upper layers are counted in
arrays. Clients are scored with theta_k as training left it, and only those drawn mix; in
PFLlib all clients mix in every round, drawn or not, keep the mixture, and are scored with
it, before training. It does not mix where the difference of the first arrays sums to 0,
here where all arrays to be mixed are equal.
"""

from typing import ClassVar

from fedsuite.method import TRAIN, Between, ClientNeeds, OneOf, ScoredModel, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedALA(FedAvg):
    """FedAvg whose clients start from a learnt mixture of the received and their own."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedALAClient", "keeps its model and mixes it with the received one", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    ala_layers: int = key(
        default=2,
        help="arrays of parameters, from the top, that are mixed; 0 is all",
        minimum=0,
        told=TRAIN,
        search=OneOf(0, 1, 2),
    )
    ala_rate: float = key(
        default=1.0,
        help="step size of the weights of the mixture; 0 is FedAvg",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.1, 10.0),
    )
    ala_rows: float = key(
        default=0.8,
        help="share of a client's rows that the weights learn from",
        above=0.0,
        maximum=1.0,
        told=TRAIN,
    )
