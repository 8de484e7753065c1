"""Client of FedAvg: plain local training."""

from typing import ClassVar

from fedsuite.training.base import FederatedClient


class FedAvgClient(FederatedClient):
    """Trains the received model on the client's data and sends it back."""

    BATCHED: ClassVar[bool] = True
