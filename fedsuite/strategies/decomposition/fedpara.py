"""FedPara and pFedPara: low-rank factors travel, not weights.

N. Hyeon-Woo, M. Ye-Bin, T.-H. Oh, "FedPara: Low-rank Hadamard Product for
Communication-Efficient Federated Learning", ICLR 2022, arXiv:2108.06098.

The network's layers are those of :mod:`fedsuite.models.fedpara`. FedPara is FedAvg on their
factors; pFedPara averages the first product's factors, biases, statistics and the dense
layers, and leaves the second product's factors with the clients.

Deviation: no Jacobian correction, an optional regulariser of the paper.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from fedsuite.method import Arrays, Exchange, Release, ServerLogger, Value, state
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.personal.partial import PartialAverage

logger = ServerLogger(__name__)

_FACTORS = (
    frozenset({"x1", "y1", "x2", "y2"}),
    frozenset({"t1", "o1", "i1", "t2", "o2", "i2"}),
)
"""Names of a layer's factors: of a dense one, and of a convolution."""


def is_factored(names: Iterable[str]) -> bool:
    """Return whether a model of these arrays has a layer with FedPara's factors."""
    layers: dict[str, set[str]] = {}
    for name in names:
        path, _, leaf = name.rpartition(".")
        layers.setdefault(path, set()).add(leaf)
    return any(factors <= leaves for leaves in layers.values() for factors in _FACTORS)


class FedPara(FedAvg):
    """FedAvg on a network with FedPara's layers."""

    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "the factors are the model's arrays, and travel as any model does",
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = {"fedpara": True}
    FIXED: ClassVar[Mapping[str, Value]] = {"fedpara": True, "fedpara-personal": False}

    _warned: bool = state(default_factory=bool)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        if not (self._warned or is_factored(arrays)):
            self._warned = True
            logger.warning(
                "the model has no factors, and without them FedPara is FedAvg: make it "
                "with fedsuite.models.fedpara.fedpara(model), at the clients too"
            )
        return super().train_exchange(arrays, client_ids)


class PFedPara(PartialAverage):
    """Averages all but the second factors, weighted by examples."""

    DEFAULTS: ClassVar[Mapping[str, Value]] = {"fedpara": True, "fedpara-personal": True}
    FIXED: ClassVar[Mapping[str, Value]] = DEFAULTS

    @override
    def shares(self, groups: ParameterGroups) -> frozenset[str]:
        if not groups.personal:
            raise ValueError("the model has no second factors: make it with fedpara()")
        return frozenset(groups.names) - frozenset(groups.personal)
