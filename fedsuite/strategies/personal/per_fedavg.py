"""Per-FedAvg (first order): a model from which one step suits each client.

A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020, arXiv:2002.07948.

Equations used: w' = w - alpha grad F_B1(w); w <- w - beta grad F_B2(w'), with two
mini-batches B1 and B2. Beta is the experiment's learning rate. A client is served the model
after one step of alpha on one mini-batch.

Known to hold: alpha = 0 is FedAvg on the mini-batches B2. Deviations: the first-order form
alone, without the Hessian's term; weights by examples. A client with a single mini-batch
uses it for both.
"""

from typing import ClassVar

from fedsuite.method import (
    EVALUATE,
    TRAIN,
    UNARGUED,
    Between,
    ClientNeeds,
    Release,
    ScoredModel,
    key,
)
from fedsuite.strategies.averaging.fedavg import FedAvg


class PerFedAvg(FedAvg):
    """FedAvg that minimises clients' losses after one step of theirs."""

    READING: ClassVar[str] = "first order, without the Hessian"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "PerFedAvgClient", "takes its gradients one step ahead"
    )
    PRIVACY: ClassVar[Release] = UNARGUED
    SCORED_MODEL: ClassVar[ScoredModel] = "tuned"

    adaptation_rate: float = key(
        default=0.01,
        help="step alpha that suits the model to a client; 0 is FedAvg on half the batches",
        minimum=0.0,
        told=f"{TRAIN} {EVALUATE}",
        search=Between(0.001, 0.1),
    )
