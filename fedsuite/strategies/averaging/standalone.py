"""Standalone: every client trains alone; nothing is exchanged.

What a client reaches without a federation, and the reference of collaborative fairness.
Clients start from the same initial model unless the experiment says otherwise, keep their
own between rounds, and are scored with it. All of them train in each round: a client that
is alone waits for nobody.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from fedsuite.method import (
    EVALUATE,
    NO_COMMON_STEP,
    NO_MODEL_BACK,
    NO_WHOLE_MODEL,
    OWN_RULE,
    TRAIN,
    Arrays,
    ClientNeeds,
    ClientReply,
    Exchange,
    FederatedStrategy,
    Release,
    key,
)


def passes_of_round(epochs: int, server_round: int, num_rounds: int) -> int:
    """Return the passes over its data that a client makes in a round.

    After each round as near to its share of the budget as whole passes are, from below.

    Parameters
    ----------
    epochs
        Passes of the whole run.
    server_round
        From 1.
    num_rounds
        Rounds of the run.
    """
    return epochs * server_round // num_rounds - epochs * (server_round - 1) // num_rounds


class Standalone(FederatedStrategy):
    """Lets all clients train in each round; no array goes to them or comes back."""

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
        "clients-per-round": "every client trains in each round",
        "selection": "every client trains in each round",
        "over-select": "no round waits for a model",
        "round-deadline": "no round waits for a model",
    }
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "StandaloneClient", "keeps its model", stores=True
    )

    PRIVATE_MODELS: ClassVar[bool] = True
    NO_GLOBAL_MODEL: ClassVar[str] = "clients keep their models"

    standalone_epochs: int = key(
        default=0,
        help="passes of each client over its data in the whole run, spread over rounds; "
        "0 is local-epochs or local-steps in each",
        minimum=0,
    )

    @override
    def drawn(self, phase: str) -> list[int]:
        if phase != TRAIN:
            return super().drawn(phase)
        return list(self.those_there(self.members()))

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        epochs = self.standalone_epochs
        passes = passes_of_round(epochs, self.server_round, self.num_rounds)
        return Exchange(TRAIN, client_ids, config={"passes": passes} if epochs else {})

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids)

    @override
    def take(self, reply: ClientReply) -> None:
        """Take nothing: a reply holds no array."""

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        return None
