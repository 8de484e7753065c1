"""FedProx: local training with a proximal term.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv:1812.06127.

Equation used (2): clients minimise F_k(w) + mu/2 ||w - w_t||^2, w_t the received model; the
server averages as FedAvg does. Deviations: the average is weighted by examples, as in the
paper's own experiments; clients do a fixed amount of work (no gamma-inexactness).
"""

from typing import ClassVar

from fedsuite.method import TRAIN, Between, ClientNeeds, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg whose clients stay near the received model."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedProxClient", "pulls its steps towards the model that it got", trusted=True
    )

    proximal_mu: float = key(
        default=0.01,
        help="weight mu of the pull to the received model; 0 is FedAvg",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.001, 1.0),
    )
