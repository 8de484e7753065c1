"""Client of FedSGD: one step over all of its data."""

from dataclasses import replace
from typing import Any

from fedsuite.client import FederatedClient


class FedSGDClient(FederatedClient):
    """Takes one full-batch step per round, whatever epochs, steps and batch size say."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.training = replace(self.training, local_steps=1, batch_size=0)
