"""Client of FedProx + fine-tuning."""

from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.clients.personal.fedavg_ft import FedAvgFTClient


class FedProxFTClient(FedProxClient, FedAvgFTClient):
    """Trains with the proximal term, and tunes without it."""
