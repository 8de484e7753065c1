"""FedRep: a shared body, and a head of its own for each client, trained in turns.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, arXiv:2102.07078.

Client k trains its own head for ``head-epochs`` with the received body frozen, then the
body for the experiment's local work (the paper's one epoch by default) with the head
frozen; the server averages bodies. As in the authors' code the mean is weighted by examples
(the paper's is plain). Each training has a fresh optimiser. Deviation: no fine-tuning of
the heads after the last round, which would have to be given to all methods or to none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Unpack

from fedsuite.core.keys import Key
from fedsuite.messages.records import Arrays
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.options import FedAvgOptions
from fedsuite.strategies.personal.fedper import FedPer


class FedRep(FedPer):
    """FedPer whose clients train head and body in turns.

    Parameters
    ----------
    groups
        Groups of the model's arrays.
    head_epochs
        Passes over the client's data for the head, 0 leaves it as it was; the body gets
        ``local-epochs`` or ``local-steps``.
    options
        Keywords of :class:`~fedsuite.strategies.averaging.fedavg.FedAvg`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedRepClient", "keeps its head and trains it first"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *FedPer.KEYS,
        Key("head-epochs", 10, "passes over a client's data for its head", minimum=0),
    )

    def __init__(
        self,
        *,
        groups: ParameterGroups,
        head_epochs: int = 10,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        if head_epochs < 0:
            raise ValueError(f"head_epochs = {head_epochs}: expected >= 0")
        super().__init__(groups=groups, **options)  # type: ignore[call-arg]
        self.head_epochs = head_epochs

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send the heads' number of epochs along with the body."""
        exchange = super().train_exchange(arrays, client_ids)
        return replace(exchange, config={"head-epochs": self.head_epochs})
