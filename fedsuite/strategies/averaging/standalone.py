"""Standalone: every client trains alone; nothing is exchanged.

The reference of collaborative fairness. Clients start from the same initial model unless
the experiment says otherwise, keep their own between rounds, and are scored with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from fedsuite.messages.records import EVALUATE, TRAIN, Arrays
from fedsuite.rounds.base import FederatedStrategy
from fedsuite.rounds.declaration import (
    NO_COMMON_STEP,
    NO_MODEL_BACK,
    NO_WHOLE_MODEL,
    OWN_RULE,
    ClientNeeds,
)
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.privacy_rules import Release
from fedsuite.rounds.validation import ClientReply


class Standalone(FederatedStrategy):
    """Lets clients train; no array goes to them or comes back."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "no model leaves a client, so there is nothing to add noise to",
    )

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **OWN_RULE,
        **NO_COMMON_STEP,
        **NO_MODEL_BACK,
        **NO_WHOLE_MODEL,
        "upload-noise-multiplier": "its clients upload nothing",
        "attack": "no client gets anything of another's",
    }
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "StandaloneClient", "keeps its model", stores=True
    )

    PRIVATE_MODELS: ClassVar[bool] = True

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send no arrays, expect none."""
        return Exchange(TRAIN, client_ids)

    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send no arrays: each client scores its own model."""
        return Exchange(EVALUATE, client_ids)

    def aggregate(self, arrays: Arrays, replies: Iterator[ClientReply]) -> Arrays | None:
        """Take in the metrics; the server has no model."""
        for _ in replies:
            pass
        return None
