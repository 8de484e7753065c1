"""Base of methods whose clients keep vectors that correct their gradients.

A client k keeps a vector such as a control variate c_k, at first zero. The server keeps the
sum over *all* clients and uses the mean.

- Means of models are plain, 1 / m for each of the round's m clients with examples, unless
  a key of the method says otherwise.
- M counts every client that was a member in any round so far. A late client enters with a
  zero vector; one that leaves keeps its share. A node under a new id is a new client: use
  ``partition`` or ``registered`` identities where nodes come back.
- A round that does not count (quorum missed, no examples, NaN in the new model) changes
  neither sums nor clients' vectors: clients start again from the version before the round.
  So does a client whose reply was not used.
- Statistics of normalisation layers and integer arrays have no vector: they get the mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.messages.statistics import is_statistic
from fedsuite.method import (
    ARRAYS,
    CONTROL,
    CONTROL_CHANGE,
    COUNT_EXAMPLES,
    DRIFT,
    MEAN_EXAMPLES,
    PLAIN_MEAN,
    Arrays,
    ClientReply,
    ConfigValue,
    Exchange,
    Expected,
    FederatedStrategy,
    Release,
    Value,
    WeightedMean,
    cast_like,
    grouped,
    joined,
    key,
    norm,
    spec_of,
    state,
)

WITHOUT_SIZES = "no client tells its examples, or what belongs to it"
"""Why sums cannot go with what a client counts for by its own rows."""


class PlainMean(WeightedMean):
    """Plain mean of the clients' models, in float64."""

    @override
    def add(self, arrays: Mapping[str, NDArray[Any]], weight: float = 1.0) -> None:
        doubles = {n: np.asarray(a, dtype=np.float64) for n, a in arrays.items()}
        super().add(doubles, weight)


class CorrectedStrategy(FederatedStrategy):
    """Keeps sums of the clients' vectors, by kind and by array."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "clients' corrections are a second release, beside the model",
    )

    FIXED: ClassVar[Mapping[str, Value]] = {
        "momentum": 0.0,
        "optimizer": "sgd",
        "upload-noise-multiplier": 0.0,
    }
    FIXED_REASON: ClassVar[str] = (
        "its equations are those of plain SGD steps, and of what the clients really did"
    )
    CORRECTS_GRADIENTS: ClassVar[bool] = True
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"

    sums: dict[str, Arrays] = state(default_factory=dict)
    models: PlainMean = state(default_factory=PlainMean)
    _made: dict[str, Arrays] = state(default_factory=dict)
    _clients: set[int] = state(default_factory=set)
    _sizes: dict[int, float] = state(default_factory=dict)

    @property
    def num_known_clients(self) -> int:
        """M: the clients that were members in any round so far."""
        return len(self._clients)

    def mean_size(self) -> float:
        """Return the mean number of examples of the clients whose number is known."""
        return sum(self._sizes.values()) / max(len(self._sizes), 1)

    def total_weight(self) -> float:
        """Return what all clients together weigh in the sums: 1 each."""
        return self.num_known_clients

    def mean_vector(self, kind: str, arrays: Arrays) -> Arrays:
        """Return a vector's mean over all clients, in shapes and dtypes of ``arrays``."""
        return _mean(self.sums.get(kind, {}), arrays, self.total_weight())

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        self._clients |= set(self.members())
        return super().train_exchange(arrays, client_ids)

    def with_control(self, exchange: Exchange, arrays: Arrays) -> Exchange:
        """Send the mean control variate too; expect each client's change of its own."""
        control = self.mean_vector(CONTROL, arrays)
        spec = {ARRAYS: spec_of(arrays), CONTROL_CHANGE: spec_of(control)}
        shared = {**exchange.shared, CONTROL: control}
        return replace(exchange, shared=shared, expected=Expected(spec))

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._made = {}
        self.models = PlainMean()

    @override
    def counted(self, arrays: Arrays) -> None:
        self.sums |= self._made
        for kind, sums in self.sums.items():
            self.round_metrics[f"{kind}_norm"] = norm(*sums.values()) / self.total_weight()

    @override
    def discarded(self) -> None:
        # Clients that answered have stored new vectors: they are not to start there.
        self.client_versions = dict(self.start_versions)

    def add_to_sum(self, kind: str, vector: Mapping[str, np.ndarray]) -> None:
        """Add to a sum of clients' vectors; it counts once the round does."""
        sums = self._made.setdefault(kind, dict(self.sums.get(kind, {})))
        for name, array in vector.items():
            sums[name] = np.add(sums.get(name, 0.0), array, dtype=np.float64)

    def new_mean_vector(self, kind: str, arrays: Arrays) -> Arrays:
        """Return the mean that :meth:`mean_vector` will return if the round counts."""
        return _mean(self._made.get(kind, {}), arrays, self.total_weight())

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        sizes = sorted(self._sizes)
        scalars: dict[str, ConfigValue] = {"clients": sorted(self._clients)}
        scalars |= {"sized": sizes, "sizes": [self._sizes[k] for k in sizes]}
        return joined(self.sums), scalars

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self.sums = grouped({path: array.copy() for path, array in arrays.items()})
        self._clients = {int(client_id) for client_id in _numbers(scalars["clients"])}
        sized, sizes = _numbers(scalars["sized"]), _numbers(scalars["sizes"])
        self._sizes = {int(k): float(n) for k, n in zip(sized, sizes, strict=True)}


class DriftStrategy(CorrectedStrategy):
    """Base of FedDyn and FedDC, whose server moves the mean model by the mean drift.

    The drift h_k sums up how far a client moved from the models sent to it. The server
    computes it from the models that come back.
    """

    FIXED: ClassVar[Mapping[str, Value]] = {**CorrectedStrategy.FIXED, "fedvarp": False}

    size_scaled: bool = key(
        default=False, help="scale corrections by numbers of examples; false is the paper's"
    )
    evaluate_plain_mean: bool = key(
        default=False, help="clients also score the mean without the server's correction"
    )
    plain_mean: Arrays = state(default_factory=dict)
    _new_plain_mean: Arrays = state(default_factory=dict)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        if not self.size_scaled:
            return exchange
        self._ask_for_sizes()
        config = {**exchange.config, MEAN_EXAMPLES: self.mean_size()}
        return replace(exchange, config=config)

    @override
    def take(self, reply: ClientReply) -> None:
        if reply.num_examples > 0:
            self.models.add(reply.arrays[ARRAYS], reply.num_summed)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        mean = self.models.result()
        if mean is None:
            return None
        if self.evaluate_plain_mean:
            self._new_plain_mean = moved_mean(mean, {}, arrays)
        self.add_to_sum(DRIFT, steps_to(mean, arrays, self.models.total_weight))
        return moved_mean(mean, self.new_mean_vector(DRIFT, mean), arrays)

    def size_factor(self, reply: ClientReply) -> float:
        """Return omega_k: 1 unless ``size_scaled``."""
        return reply.num_examples / self.mean_size() if self.size_scaled else 1.0

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().evaluate_exchange(arrays, client_ids)
        if not self.evaluate_plain_mean:
            return exchange
        mean = {name: self.plain_mean.get(name, array) for name, array in arrays.items()}
        return replace(exchange, shared={**exchange.shared, PLAIN_MEAN: mean})

    def _ask_for_sizes(self) -> None:
        """Ask members for their numbers of examples while one is unknown."""
        present = [k for k in self.members() if k in self._members.nodes]
        if all(client_id in self._sizes for client_id in present):
            return
        for reply in self.exchange(Exchange(COUNT_EXAMPLES, present)):
            self._sizes[reply.client_id] = reply.num_examples

    @override
    def counted(self, arrays: Arrays) -> None:
        super().counted(arrays)
        self.plain_mean |= self._new_plain_mean

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        arrays, scalars = super().state()
        mean = {f"{PLAIN_MEAN}/{name}": array for name, array in self.plain_mean.items()}
        return {**arrays, **mean}, scalars

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        super().restore(arrays, scalars)
        self.plain_mean = self.sums.pop(PLAIN_MEAN, {})


def trained(arrays: Arrays) -> Arrays:
    """Return the arrays without statistics."""
    return {n: array for n, array in arrays.items() if not is_statistic(n, array)}


def steps_to(mean: Arrays, arrays: Arrays, factor: float) -> Arrays:
    """Return ``factor * (mean - arrays)`` of the trained arrays, in float64."""
    return {
        name: factor * np.subtract(mean[name], array, dtype=np.float64)
        for name, array in trained(arrays).items()
        if name in mean
    }


def moved_mean(mean: Arrays, shift: Arrays, arrays: Arrays) -> Arrays:
    """Return ``mean + shift`` in the dtypes of ``arrays``; what has no mean stays."""
    moved = {
        name: cast_like(value + shift.get(name, 0.0), arrays[name].dtype)
        for name, value in mean.items()
    }
    return {**arrays, **moved}


def _mean(sums: Arrays, arrays: Arrays, total_weight: float) -> Arrays:
    return {
        name: cast_like(
            sums.get(name, np.zeros(array.shape)) / (total_weight or 1.0), array.dtype
        )
        for name, array in trained(arrays).items()
    }


def _numbers(value: ConfigValue) -> list[int | float]:
    assert isinstance(value, list)
    return [item for item in value if isinstance(item, int | float)]
