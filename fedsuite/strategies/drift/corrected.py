"""Base of methods whose clients keep vectors that correct their gradients.

A client k keeps a vector such as a control variate c_k; the server keeps the sum of them
over *all* clients, and uses their mean. Both are zero at the start. Here once:

- Means of models are plain, 1 / m for each of the m clients of the round, as in these
  methods' papers; a reply without examples takes no part.
- M, the number of all clients, counts every client that was a member in any round so far.
  One that comes later enters with the zero vector it has; one that leaves keeps its share.
  So the mean is that of the clients' own vectors at any time. (A node that comes back under
  a new id is a new client: use ``partition`` or ``registered`` identities where that
  happens.)
- A round that does not count (quorum missed, no examples, NaN in the new model) leaves the
  sums as they were, and the clients' stored vectors too: they start again from the version
  before that round. So does a client whose reply was not used.
- Statistics of normalisation layers and integer arrays have no such vector: they get the
  mean.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from fedsuite.core.keys import Value
from fedsuite.core.settings import key, state
from fedsuite.messages.records import (
    ARRAYS,
    COUNT_EXAMPLES,
    DRIFT,
    MEAN_EXAMPLES,
    PLAIN_MEAN,
    Arrays,
    ConfigValue,
)
from fedsuite.rounds.aggregation import WeightedMean, cast_like
from fedsuite.rounds.base import FederatedStrategy
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.server_step import is_statistic
from fedsuite.rounds.validation import ClientReply


class CorrectedStrategy(FederatedStrategy):
    """Keeps sums of the clients' vectors, by kind and by array.

    Takes the keywords of :class:`~fedsuite.rounds.base.FederatedStrategy`.
    """

    FIXED: ClassVar[Mapping[str, Value]] = {
        "momentum": 0.0,
        "optimizer": "sgd",
        "dp-noise-multiplier": 0.0,
    }
    FIXED_REASON: ClassVar[str] = (
        "its equations are those of plain SGD steps, and of what the clients really did"
    )
    CORRECTS_GRADIENTS: ClassVar[bool] = True
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"

    sums: dict[str, Arrays] = state(default_factory=dict)
    _made: dict[str, Arrays] = state(default_factory=dict)
    _clients: set[int] = state(default_factory=set)

    @property
    def num_known_clients(self) -> int:
        """M: the clients that were members in any round so far."""
        return len(self._clients)

    def mean_vector(self, kind: str, arrays: Arrays) -> Arrays:
        """Return the mean of a vector over all clients, for the trained ones of arrays.

        In the shapes and dtypes of ``arrays``; zero where no client has sent any yet.
        """
        return _mean(self.sums.get(kind, {}), arrays, self.num_known_clients)

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Take note of who is a member, then do as usual."""
        self._clients |= set(self._members.client_ids)
        return super().train_exchange(arrays, client_ids)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Reduce the replies; a round that does not count moves no vector anywhere."""
        versions = dict(self.client_versions)
        self._made = {}
        record, metrics = super().aggregate_train(server_round, replies)
        if record is None:
            # Clients that answered have stored new vectors: they are not to start there.
            self.client_versions = versions
            return record, metrics
        self.commit()
        for kind, sums in self.sums.items():
            norm = math.sqrt(sum(float(np.square(array).sum()) for array in sums.values()))
            self.round_metrics[f"{kind}_norm"] = norm / self.num_known_clients
        return record, metrics

    def commit(self) -> None:
        """Take over what the round made."""
        self.sums |= self._made

    def add_to_sum(self, kind: str, vector: Mapping[str, np.ndarray]) -> None:
        """Add to a sum of clients' vectors; it counts once the round does."""
        made = self._made.setdefault(kind, dict(self.sums.get(kind, {})))
        for name, array in vector.items():
            made[name] = np.add(made.get(name, 0.0), array, dtype=np.float64)

    def new_mean_vector(self, kind: str, arrays: Arrays) -> Arrays:
        """Return the mean that :meth:`mean_vector` will return if the round counts."""
        return _mean(self._made.get(kind, {}), arrays, self.num_known_clients)

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return the sums, and who has been a member."""
        sums = {f"{k}/{name}": a for k, s in self.sums.items() for name, a in s.items()}
        return sums, {"clients": sorted(self._clients)}

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take them back."""
        self.sums = {}
        for path, array in arrays.items():
            kind, _, name = path.partition("/")
            self.sums.setdefault(kind, {})[name] = array.copy()
        self._clients = {int(client_id) for client_id in _numbers(scalars["clients"])}


class DriftStrategy(CorrectedStrategy):
    """Base of FedDyn and FedDC, whose server moves the mean model by the mean drift.

    The drift h_k of a client is all that it has moved away from the models sent to it. The
    server works out its sum from the models that come back.
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
    _sizes: dict[int, float] = state(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extras.memory is not None:
            raise ValueError(
                "fedvarp changes the models that come back, and with them what the server "
                "takes for the clients' drift: leave it off"
            )

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send the mean number of examples along with the model, if it is wanted."""
        exchange = super().train_exchange(arrays, client_ids)
        if not self.size_scaled:
            return exchange
        self._ask_for_sizes()
        config = {**exchange.config, MEAN_EXAMPLES: self._mean_size()}
        return replace(exchange, config=config)

    def aggregate(self, arrays: Arrays, replies: Iterator[ClientReply]) -> Arrays | None:
        """Return the plain mean moved by the mean drift of all clients."""
        models = PlainMean()
        for reply in with_examples(replies):
            models.add(reply.arrays[ARRAYS])
            self.take_in(reply)
        mean = models.result()
        if mean is None:
            return None
        if self.evaluate_plain_mean:
            self._new_plain_mean = moved_mean(mean, {}, arrays)
        self.add_to_sum(DRIFT, steps_to(mean, arrays, models.num_clients))
        return moved_mean(mean, self.new_mean_vector(DRIFT, mean), arrays)

    def take_in(self, reply: ClientReply) -> None:
        """Take what a method needs beside the model from one client's reply."""

    def size_factor(self, reply: ClientReply) -> float:
        """Return omega_k, which is 1 unless sizes are to scale."""
        return reply.num_examples / self._mean_size() if self.size_scaled else 1.0

    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send the plain mean beside the model, if it is wanted."""
        exchange = super().evaluate_exchange(arrays, client_ids)
        if not self.evaluate_plain_mean:
            return exchange
        mean = {name: self.plain_mean.get(name, array) for name, array in arrays.items()}
        return replace(exchange, shared={**exchange.shared, PLAIN_MEAN: mean})

    def _ask_for_sizes(self) -> None:
        """Ask how many examples clients have, while there is one that never said."""
        present = sorted(self._members.nodes)
        if all(client_id in self._sizes for client_id in present):
            return
        for reply in self.exchange(Exchange(COUNT_EXAMPLES, present)):
            self._sizes[reply.client_id] = reply.num_examples

    def _mean_size(self) -> float:
        return sum(self._sizes.values()) / max(len(self._sizes), 1)

    def commit(self) -> None:
        """Take over what the round made."""
        super().commit()
        self.plain_mean |= self._new_plain_mean

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return the sums, the clients' sizes, and the plain mean, where there are any."""
        arrays, scalars = super().state()
        mean = {f"{PLAIN_MEAN}/{name}": array for name, array in self.plain_mean.items()}
        sizes = sorted(self._sizes)
        scalars |= {"sized": sizes, "sizes": [self._sizes[k] for k in sizes]}
        return {**arrays, **mean}, scalars

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take them back."""
        super().restore(arrays, scalars)
        self.plain_mean = self.sums.pop(PLAIN_MEAN, {})
        sized, sizes = _numbers(scalars["sized"]), _numbers(scalars["sizes"])
        self._sizes = {int(k): float(n) for k, n in zip(sized, sizes, strict=True)}


class PlainMean:
    """Plain mean of the clients' models in float64, taken in one at a time."""

    def __init__(self) -> None:
        self._mean = WeightedMean()

    @property
    def num_clients(self) -> int:
        """How many models were added."""
        return int(self._mean.total_weight)

    def add(self, arrays: Arrays) -> None:
        """Take in one client's model."""
        doubles = {n: np.asarray(a, dtype=np.float64) for n, a in arrays.items()}
        self._mean.add(doubles, 1.0)

    def result(self) -> Arrays | None:
        """Return the mean, or None of no models."""
        return self._mean.result()


def with_examples(replies: Iterator[ClientReply]) -> Iterator[ClientReply]:
    """Leave out replies of clients that trained on nothing."""
    return (reply for reply in replies if reply.num_examples > 0)


def trained(arrays: Arrays) -> Arrays:
    """Return the arrays that are trained, statistics left out."""
    return {n: array for n, array in arrays.items() if not is_statistic(n, array)}


def steps_to(mean: Arrays, arrays: Arrays, factor: float) -> Arrays:
    """Return ``factor * (mean - arrays)`` in float64, of the arrays that are trained."""
    return {
        name: factor * np.subtract(mean[name], array, dtype=np.float64)
        for name, array in trained(arrays).items()
        if name in mean
    }


def moved_mean(mean: Arrays, shift: Arrays, arrays: Arrays) -> Arrays:
    """Return ``mean + shift`` in the dtypes of ``arrays``.

    Names without a shift get the mean; names without a mean stay as they are.
    """
    moved = {
        name: cast_like(value + shift.get(name, 0.0), arrays[name].dtype)
        for name, value in mean.items()
    }
    return {**arrays, **moved}


def _mean(sums: Arrays, arrays: Arrays, num_clients: int) -> Arrays:
    return {
        name: cast_like(
            sums.get(name, np.zeros(array.shape)) / max(num_clients, 1), array.dtype
        )
        for name, array in trained(arrays).items()
    }


def _numbers(value: ConfigValue) -> list[int | float]:
    assert isinstance(value, list)
    return [item for item in value if isinstance(item, int | float)]
