"""FedPara and pFedPara: low-rank factors travel, not weights.

N. Hyeon-Woo, M. Ye-Bin, T.-H. Oh, "FedPara: Low-rank Hadamard Product for
Communication-Efficient Federated Learning", ICLR 2022, arXiv:2108.06098.

The network's layers are those of :mod:`fedsuite.models.fedpara`. FedPara is FedAvg on their
factors; pFedPara averages the first product's factors, biases, statistics and the dense
layers, and leaves the second product's factors with the clients.

Deviation: no Jacobian correction, an optional regulariser of the paper.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedsuite.core.keys import Value
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.privacy_rules import Release
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.personal.partial import PartialAverage


class FedPara(FedAvg):
    """FedAvg on a network with FedPara's layers."""

    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "the factors are the model's arrays, and travel as any model does",
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = {"fedpara": True}
    FIXED: ClassVar[Mapping[str, Value]] = {"fedpara": True, "fedpara-personal": False}


class PFedPara(PartialAverage):
    """Averages all but the second factors, weighted by examples."""

    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "only the shared factors leave a client; the guarantee is for what others see",
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = {"fedpara": True, "fedpara-personal": True}
    FIXED: ClassVar[Mapping[str, Value]] = DEFAULTS

    def shares(self, groups: ParameterGroups) -> frozenset[str]:
        """Return all but the second factors."""
        if not groups.personal:
            raise ValueError("the model has no second factors: make it with fedpara()")
        return frozenset(groups.names) - frozenset(groups.personal)
