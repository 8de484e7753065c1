"""FedNTD: local training that keeps what the received model says of other classes.

G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun, "Preservation of the Global Knowledge by
Not-True Distillation in Federated Learning", NeurIPS 2022, arXiv:2106.03097.

Equation used: clients minimise CE + beta T^2 KL(softmax(g / T) || softmax(f / T)), where f
are the model's logits and g those of the received model, both without the logit of the true
class. The server averages as FedAvg does. Deviations: none.
"""

from typing import ClassVar

from fedsuite.method import TRAIN, Between, ClientNeeds, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedNTD(FedAvg):
    """FedAvg whose clients keep the received model's view of the classes not theirs."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedNTDClient", "distils the received model on the other classes"
    )

    fedntd_weight: float = key(
        default=1.0,
        help="weight beta of the distillation; 0 is FedAvg",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.1, 10.0),
    )
    fedntd_temperature: float = key(
        default=1.0, help="softmax temperature of distillation", above=0.0, told=TRAIN
    )
