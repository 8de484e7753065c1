"""FedAvg + fine-tuning: FedAvg's model, tuned on each client before it is scored.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "FedAvg with Fine Tuning: Local Updates
Lead to Representation Learning", NeurIPS 2022, arXiv:2205.13692.

Training is FedAvg's. At evaluation each client trains the received model for some epochs on
its training data and scores the result on its test data; the tuned model is then dropped.
Deviation: none; the paper leaves the number of epochs to the experiment.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Unpack

from fedsuite.core.keys import Key
from fedsuite.messages.records import Arrays
from fedsuite.rounds.declaration import ClientNeeds, ScoredModel
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.options import FedAvgOptions
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedAvgFT(FedAvg):
    """FedAvg whose clients fine-tune before they are evaluated.

    Parameters
    ----------
    fine_tune_epochs
        Passes over the client's training data before evaluation; 0 is FedAvg.
    options
        Keywords of :class:`~fedsuite.strategies.averaging.fedavg.FedAvg`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedAvgFTClient", "is scored after fine-tuning"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *FedAvg.KEYS,
        Key(
            "fine-tune-epochs",
            1,
            "passes over the client's training data before evaluation; 0 is FedAvg",
            minimum=0,
        ),
    )
    SCORED_MODEL: ClassVar[ScoredModel] = "tuned"

    def __init__(
        self, *, fine_tune_epochs: int = 1, **options: Unpack[FedAvgOptions]
    ) -> None:
        if fine_tune_epochs < 0:
            raise ValueError(f"fine_tune_epochs = {fine_tune_epochs}: expected >= 0")
        super().__init__(**options)
        self.fine_tune_epochs = fine_tune_epochs

    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send the number of epochs along with the model."""
        exchange = super().evaluate_exchange(arrays, client_ids)
        return replace(exchange, config={"fine-tune-epochs": self.fine_tune_epochs})
