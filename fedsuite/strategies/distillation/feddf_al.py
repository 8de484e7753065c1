"""FedDF-AL: FedDF's clients distil against FedAL's discriminator.

P. Han, X. Shi, J. Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by
Adversarial Learning", arXiv:2311.16584, figure 10.

``client-kd`` of :mod:`fedsuite.strategies.distillation.feddf`, with the adversarial term of
:mod:`fedsuite.strategies.distillation.fedal` in the transfer loss: each client gets the
model of its network, trains it, exchanges logits, steps against the discriminator, and
sends its model, which the server averages within each network. Not black-box: parameters
travel as well as logits.

Known to hold: ``adversarial`` false is FedDF with as many steps, bit for bit.

Deviations. The paper gives only FedDF-AL's numbers of steps (15) and its discriminator's
temperature (2). Averaging comes last: only before it do clients of one network differ.
Less-forgetting is off by default. The discriminator is FedAL's.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedsuite.method import ClientNeeds, Value
from fedsuite.strategies.distillation.fedal import FedAL
from fedsuite.strategies.distillation.fedmd import LessForgetting
from fedsuite.strategies.distillation.network_averages import NetworkAverages
from fedsuite.strategies.distillation.public_exchange import DEFAULTS


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

    # Only FedAL's weight was tried.
    PAPER: ClassVar[Mapping[str, Value]] = {}
    adversarial_weight: float = 1.0
    transfer_steps: int = 15
    less_forgetting: LessForgetting = "none"
