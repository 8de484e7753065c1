"""FedAvg + fine-tuning: FedAvg's model, tuned on each client before it is scored.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "FedAvg with Fine Tuning: Local Updates
Lead to Representation Learning", NeurIPS 2022, arXiv:2205.13692.

Training is FedAvg's. At evaluation each client trains the received model for some epochs on
its training data and scores the result on its test data; the tuned model is then dropped.
Deviation: none; the paper leaves the number of epochs to the experiment.
"""

from typing import ClassVar

from fedsuite.method import EVALUATE, ClientNeeds, OneOf, ScoredModel, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedAvgFT(FedAvg):
    """FedAvg whose clients fine-tune before they are evaluated."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedAvgFTClient", "is scored after fine-tuning"
    )
    SCORED_MODEL: ClassVar[ScoredModel] = "tuned"

    fine_tune_epochs: int = key(
        default=1,
        help="epochs of tuning before evaluation; 0 scores the received model",
        minimum=0,
        told=EVALUATE,
        search=OneOf(1, 2, 5, 10),
    )
