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

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Unpack

from fedsuite.core.keys import Key, Value
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.strategies.distillation.fedal import DiscriminatorOptimizer, FedAL
from fedsuite.strategies.distillation.fedmd import DistillationOptions, LessForgetting
from fedsuite.strategies.distillation.network_averages import (
    AVERAGE,
    Average,
    NetworkAverages,
)
from fedsuite.strategies.distillation.public_exchange import DEFAULTS

if TYPE_CHECKING:
    from fedsuite.models.server_networks import ServerNetworks

_CHANGED: dict[str, Value] = {"transfer-steps": 15, "less-forgetting": "none"}


class FedDFALOptions(DistillationOptions, total=False):
    """Keywords of ``FedAL`` that FedDF-AL hands on."""

    adversarial: bool
    discriminator_learning_rate: float
    discriminator_optimizer: DiscriminatorOptimizer
    discriminator_temperature: float
    discriminator_widths: str


class FedDFAL(NetworkAverages, FedAL):
    """FedAL with an average of the clients' models, within each network, after each round.

    Parameters
    ----------
    networks
        The clients' networks.
    feddf_average
        ``size`` weighs models by examples, ``uniform`` alike.
    transfer_steps, less_forgetting
        As in :class:`~fedsuite.strategies.distillation.fedmd.FedMD`.
    options
        Keywords of :class:`~fedsuite.strategies.distillation.fedal.FedAL`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDFClient", "answers with its outputs on public data"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *(replace(k, default=_CHANGED.get(k.name, k.default)) for k in FedAL.KEYS),
        AVERAGE,
    )
    DEFAULTS: ClassVar[dict[str, Value]] = {
        **DEFAULTS,
        "local-steps": 15,
        "client-initialisation": "shared",
    }

    def __init__(
        self,
        *,
        networks: "ServerNetworks",
        feddf_average: Average = "size",
        transfer_steps: int = 15,
        less_forgetting: LessForgetting = "none",
        **options: Unpack[FedDFALOptions],
    ) -> None:
        super().__init__(  # type: ignore[call-arg, misc]
            transfer_steps=transfer_steps, less_forgetting=less_forgetting, **options
        )
        self.networks = networks
        self.average = feddf_average
