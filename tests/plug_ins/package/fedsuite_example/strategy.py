"""Anchored averaging, the server's side."""

from typing import ClassVar

from fedsuite.method import TRAIN, ClientNeeds, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class Anchored(FedAvg):
    """FedAvg whose clients send a point on the way to what they trained."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "fedsuite_example.client:AnchoredClient", "sends a point on its way"
    )

    anchored_way: float = key(
        default=0.5,
        help="share of its way that a client goes; 1 is FedAvg",
        above=0.0,
        maximum=1.0,
        told=TRAIN,
    )
