"""FedProx + fine-tuning: FedProx's model, tuned on each client before it is scored.

Training is that of :mod:`fedsuite.strategies.drift.fedprox`. At evaluation each client
tunes what it received as in :mod:`fedsuite.strategies.personal.fedavg_ft`, without the
proximal term.
"""

from typing import ClassVar

from fedsuite.method import ClientNeeds
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.strategies.personal.fedavg_ft import FedAvgFT


class FedProxFT(FedProx, FedAvgFT):
    """FedProx whose clients fine-tune before they are evaluated."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedProxFTClient", "pulls its steps and is scored after fine-tuning"
    )
