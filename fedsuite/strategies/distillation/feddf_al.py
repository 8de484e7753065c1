"""FedDF-AL: FedDF's clients distil against FedAL's discriminator.

P. Han, X. Shi, J. Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by
Adversarial Learning", arXiv:2311.16584, figure 10.

FedDF as its clients distil (``client-kd`` of
:mod:`fedsuite.strategies.distillation.feddf`), where the transfer loss has FedAL's
adversarial term (:mod:`fedsuite.strategies.distillation.fedal`): each client gets the model
of its network, trains it, exchanges logits, steps against the discriminator, and sends its
model, which the server averages within each network. Not black-box: parameters travel as
well as logits.

Known to hold: ``adversarial`` false is FedDF with as many steps, bit for bit.

Deviations. The paper says nothing of FedDF-AL but its numbers of steps (15) and its
discriminator's temperature (2). Averaging comes last, as clients of one network can only be
told apart before it. Less-forgetting is off unless asked for. What FedAL's paper leaves
open of the discriminator is as in FedAL.
"""

from typing import TYPE_CHECKING, ClassVar

from fedsuite.core.keys import Value
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.strategies.distillation.fedal import FedAL
from fedsuite.strategies.distillation.fedmd import LessForgetting
from fedsuite.strategies.distillation.network_averages import (
    NetworkAverages,
)
from fedsuite.strategies.distillation.public_exchange import DEFAULTS

if TYPE_CHECKING:
    pass


class FedDFAL(NetworkAverages, FedAL):
    """FedAL with an average of the clients' models within each network."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDFClient", "answers with its outputs on public data"
    )

    DEFAULTS: ClassVar[dict[str, Value]] = {
        **DEFAULTS,
        "local-steps": 15,
        "client-initialisation": "shared",
    }

    transfer_steps: int = 15
    less_forgetting: LessForgetting = "none"
