"""Client of FedAvg: plain local training."""

from fedsuite.client import FederatedClient


class FedAvgClient(FederatedClient):
    """Trains the received model on the client's data and sends it back."""
