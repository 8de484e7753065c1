"""FedBN: each client keeps its batch normalisation.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features
via Local Batch Normalization", ICLR 2021, arXiv:2102.07623.

Client k trains the whole model; of it the server averages, weighted by n_k, all arrays but
those of batch normalisation: its scale, shift and statistics. A layer is known by its type,
not by its name.

Known to hold: a model without batch normalisation makes this FedAvg, bit for bit.
Deviation: a client that never took part is scored with the initial normalisation.
"""

from typing_extensions import override

from fedsuite.method import ServerLogger, state
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies.personal.partial import PartialAverage

logger = ServerLogger(__name__)


class FedBN(PartialAverage):
    """Averages all but batch normalisation, weighted by examples."""

    _warned: bool = state(default_factory=bool)

    @override
    def shares(self, groups: ParameterGroups) -> frozenset[str]:
        if not (self._warned or groups.normalisation):
            self._warned = True
            logger.warning(
                "the model has no batch normalisation, and without it FedBN is FedAvg: "
                "choose another model, or another method"
            )
        return frozenset(groups.names) - frozenset(groups.normalisation)
