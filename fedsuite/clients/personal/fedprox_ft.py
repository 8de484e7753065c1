"""Client of FedProx + fine-tuning."""

from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.clients.personal.fedavg_ft import FedAvgFTClient
from fedsuite.messages.records import Reply, Request


class FedProxFTClient(FedProxClient, FedAvgFTClient):
    """Trains with the proximal term, and tunes without it."""

    def on_evaluate(self, request: Request) -> Reply:
        """Fine-tune, then evaluate; the tuned model is not kept."""
        self._proximal_mu = 0.0
        return super().on_evaluate(request)
