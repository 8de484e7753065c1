"""FedProx + fine-tuning: FedProx's model, tuned on each client before it is scored.

Training is that of :mod:`fedsuite.strategies.drift.fedprox`. At evaluation each client
tunes what it received as in :mod:`fedsuite.strategies.personal.fedavg_ft`, without the
proximal term.
"""

from typing import ClassVar, Unpack

from fedsuite.core.keys import Key
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.options import FedAvgOptions
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.strategies.personal.fedavg_ft import FedAvgFT


class FedProxFT(FedProx, FedAvgFT):
    """FedProx whose clients fine-tune before they are evaluated.

    Parameters
    ----------
    proximal_mu, fine_tune_epochs
        As for FedProx and FedAvgFT; with ``proximal_mu`` 0 it is the latter.
    options
        Keywords of :class:`~fedsuite.strategies.averaging.fedavg.FedAvg`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedProxFTClient", "pulls its steps and is scored after fine-tuning"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (*FedProx.KEYS, FedAvgFT.KEYS[-1])

    def __init__(
        self,
        *,
        proximal_mu: float = 0.01,
        fine_tune_epochs: int = 1,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        # FedProx hands on to FedAvgFT what is not its own.
        super().__init__(
            proximal_mu=proximal_mu,
            fine_tune_epochs=fine_tune_epochs,  # type: ignore[call-arg]
            **options,
        )
