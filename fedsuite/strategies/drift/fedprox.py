"""FedProx: local training with a proximal term.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv:1812.06127.

Equation used (2): clients minimise F_k(w) + mu/2 ||w - w_t||^2, w_t the received model; the
server averages as FedAvg does. Deviations: the average is weighted by examples, as in the
paper's own experiments; clients do a fixed amount of work (no gamma-inexactness).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Unpack

from fedsuite.core.keys import Key
from fedsuite.messages.records import Arrays
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.options import FedAvgOptions
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg whose clients stay near the received model.

    Parameters
    ----------
    proximal_mu
        Weight mu of the proximal term; 0 is FedAvg. Sent to clients as ``proximal-mu``,
        as Flower's FedProx does.
    options
        Keywords of :class:`~fedsuite.strategies.averaging.fedavg.FedAvg`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedProxClient", "pulls its steps towards the model that it got"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *FedAvg.KEYS,
        Key(
            "proximal-mu",
            0.01,
            "weight mu of FedProx's proximal term; 0 is FedAvg",
            minimum=0.0,
        ),
    )

    def __init__(
        self, *, proximal_mu: float = 0.01, **options: Unpack[FedAvgOptions]
    ) -> None:
        if not proximal_mu >= 0:
            raise ValueError(f"proximal_mu = {proximal_mu}: expected a number >= 0")
        super().__init__(**options)
        self.proximal_mu = proximal_mu

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send mu along with the model."""
        exchange = super().train_exchange(arrays, client_ids)
        return replace(exchange, config={"proximal-mu": self.proximal_mu})
