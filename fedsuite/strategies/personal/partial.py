"""Base of methods that share a part of the model and leave the rest with the clients."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from fedsuite.messages.statistics import is_statistic
from fedsuite.method import (
    ARRAYS,
    EVALUATE,
    NO_WHOLE_MODEL,
    TRAIN,
    Arrays,
    ClientNeeds,
    Exchange,
    Expected,
    Release,
    part,
    spec_of,
)
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies.averaging.fedavg import FedAvg


class PartialAverage(FedAvg):
    """FedAvg over the shared part; the server keeps the rest at its initial values.

    Each client keeps a part of its own, at first the initial one. A method names the shared
    arrays in :meth:`shares`: all is FedAvg, none is Standalone.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "PartialClient", "keeps its own part of the model"
    )

    NO_GLOBAL_MODEL: ClassVar[str] = "each client keeps a part of its own"
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = NO_WHOLE_MODEL
    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "only the shared part leaves a client; the guarantee is for what others see",
    )

    groups: ParameterGroups = part(
        help="groups of the model's arrays, as fedsuite.models.parameter_groups makes them"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self._shared_names = self.shares(self.groups)

    @abstractmethod
    def shares(self, groups: ParameterGroups) -> frozenset[str]:
        """Return the names of the arrays that travel; raise ValueError at a wrong model."""

    def shared(self, arrays: Arrays) -> Arrays:
        """Return the shared arrays, in their order."""
        return {n: array for n, array in arrays.items() if n in self._shared_names}

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        shared = self.shared(arrays)
        trained = (a.size for name, a in shared.items() if not is_statistic(name, a))
        self.round_metrics["shared_parameters"] = float(sum(trained))
        return Exchange(
            TRAIN,
            client_ids,
            shared={ARRAYS: shared},
            config=self.told(TRAIN),
            expected=Expected({ARRAYS: spec_of(shared)}),
        )

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids, shared={ARRAYS: self.shared(arrays)})

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        averaged = super().aggregate(self.shared(arrays))
        return None if averaged is None else {**arrays, **averaged}
