"""FedRep: a shared body, and a head of its own for each client, trained in turns.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, arXiv:2102.07078.

Client k trains its own head for ``head-epochs`` with the received body frozen, then the
body for the experiment's local work with the head frozen, each with a fresh optimiser. The
server averages bodies, weighted by examples as in the authors' code (the paper's mean is
plain). Deviation: no fine-tuning of heads after the last round.
"""

from typing import ClassVar

from fedsuite.method import TRAIN, ClientNeeds, OneOf, key
from fedsuite.strategies.personal.fedper import FedPer


class FedRep(FedPer):
    """FedPer whose clients train head and body in turns."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedRepClient", "keeps its head and trains it first"
    )

    head_epochs: int = key(
        default=10,
        help="passes over the data for the head",
        minimum=0,
        told=TRAIN,
        search=OneOf(1, 2, 5, 10),
    )
