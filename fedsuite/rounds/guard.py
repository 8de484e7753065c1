"""The guard: bounds on what one reply can say, before anything else sees it.

A guard maps replies to replies. It knows no method: FedVARP, layers and methods see what it
lets through. It looks at

- the number of examples, and other counts and losses that a method weighs clients by;
- the length of the update, of the statistics of normalisation layers, and of the other
  vectors that are shaped like the model: changes of control variates, gradients.

Each amount is compared with the median of the round. An amount that no honest client says
is *not believed*: it counts as the median. What is not believed is FACTOR times the largest
median of a round so far, for numbers of examples of this round: updates and losses shrink
as the model learns, and where most clients have learnt, one that has not is no liar.

The guard holds the first replies of an exchange, and judges each by all that came before it
and by those that are held. So the memory does not grow with the number of clients. A bound
of the user's in medians holds the whole round.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.core.vectors import Vector
from fedsuite.messages.records import (
    ARRAYS,
    CONTROL_CHANGE,
    GRADIENT,
    UPDATE,
    Arrays,
    is_model_record,
)
from fedsuite.rounds.changes import Changes, length, statistics, trained
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply

HELD = 8
"""Replies that are held before the first is judged."""

FEWEST = 3
"""With fewer replies nobody can tell which of them is odd."""

BELIEVED = 100.0
"""Medians up to which a count or a length is believed."""

_BELIEVED_LOSS = 4.0
"""Medians up to which a loss is believed."""

EXAMPLES, NORM, STATISTICS = "num-examples", "update", "statistics"

_MODELS = (ARRAYS, "first-step")
_VECTORS = (CONTROL_CHANGE, GRADIENT, UPDATE, "head")

Amounts = dict[str, float]
"""What a reply says, by kind of amount."""

Origins = Mapping[str, Arrays]
"""What each model of a reply was before training, by its record."""

Tell = Callable[[int, str], None]
"""Hears of a client and of what was changed in its reply."""


@dataclass(frozen=True)
class Limit:
    """The largest amount that counts.

    Parameters
    ----------
    at
        A number.
    medians
        A number of medians of the round.
    believed
        The number of medians beyond which an amount counts as the median.
    """

    at: float = math.inf
    medians: float = math.inf
    believed: float = math.inf

    @classmethod
    def parse(cls, name: str, text: float | str) -> "Limit":
        """Return the limit that a key's value says: a number, or "median x 3", ...

        Raises
        ------
        ValueError
            If the number of medians is 0.
        """
        if isinstance(text, float | int):
            return cls(at=float(text))
        if text == "auto":
            return cls(believed=BELIEVED)
        if text == "off":
            return cls()
        medians = float(text.rpartition("x")[2])
        if medians == 0:
            raise ValueError(f"{name} = {text!r}: expected more than 0 medians")
        return cls(medians=medians)

    def of(self, amount: float, median: float, largest: float = 0.0) -> float:
        """Return what counts of an amount; ``largest`` is the largest median before."""
        if amount > self.believed * max(median, largest):
            return median
        return min(amount, self.at, self.medians * median)


NO_LIMIT = Limit()
BELIEVED_COUNT = Limit(believed=BELIEVED)
BELIEVED_LOSS = Limit(believed=_BELIEVED_LOSS)


def within_ratio(losses: Vector, slope: float, ratio: float) -> Vector:
    """Return losses that weigh no client more than ``ratio`` >= 1 times the median one.

    The weights are exp(slope * loss): the slope is an inverse temperature, a tilt, or the
    power of losses whose logarithms are given. The lower of two medians counts, so that of
    two clients neither can raise it alone. An infinite ratio changes nothing.
    """
    if ratio == math.inf or slope == 0:
        return losses
    signed = losses if slope > 0 else -losses
    median = np.sort(signed)[(len(signed) - 1) // 2]
    limited: Vector = np.minimum(signed, median + math.log(ratio) / abs(slope))
    return limited if slope > 0 else -limited


def median_of(positive: Sequence[float]) -> float:
    """Return the lower median of sorted values above 0; infinity if they are too few."""
    return positive[(len(positive) - 1) // 2] if len(positive) >= FEWEST else math.inf


@dataclass
class Guard(Stage):
    """Bounds what one reply can say.

    Parameters
    ----------
    max_examples, max_update_norm
        The limits of these keys.
    steered_by
        Metric that a method weighs clients by to its limit.
    tell
        Hears of each change.
    """

    name: ClassVar[str] = "guard"

    max_examples: Limit = BELIEVED_COUNT
    max_update_norm: Limit = BELIEVED_COUNT
    steered_by: Mapping[str, Limit] = field(default_factory=dict)
    tell: Tell = field(default=lambda client_id, change: None, repr=False)
    largest_median: dict[str, float] = field(default_factory=dict)
    _models: dict[int, Arrays] = field(default_factory=dict, repr=False)
    _changes: Changes = field(default_factory=Changes, repr=False)
    _shared: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    _said: dict[str, list[float]] = field(default_factory=dict, repr=False)
    _held: deque[tuple[ClientReply, Amounts, Origins]] = field(
        default_factory=deque, repr=False
    )

    @override
    def open(self, exchange: Exchange) -> None:
        # Some methods send models in one exchange and get them back in the next.
        own = exchange.own.items()
        self._models |= {k: records[ARRAYS] for k, records in own if ARRAYS in records}
        self._shared = exchange.shared
        self._said = {}
        self._held.clear()

    @override
    def reply(self, reply: ClientReply) -> Iterator[ClientReply]:
        limits = [self.max_examples, self.max_update_norm, *self.steered_by.values()]
        if all(limit == NO_LIMIT for limit in limits):
            yield reply
            return
        model = self._shared.get(ARRAYS) or self._models.get(reply.client_id, {})
        others = {n: a for n, a in self._shared.items() if is_model_record(n)}
        origins = {**dict.fromkeys(_MODELS, model), **others}
        amounts = self._measured(reply, origins)
        for kind, amount in amounts.items():
            if amount > 0:
                # Sorted anew for each reply, very many replies take very long.
                insort(self._said.setdefault(kind, []), amount)
        self._held.append((reply, amounts, origins))
        whole = any(limit.medians < math.inf for limit in limits)
        if len(self._held) > HELD and not whole:
            yield self._bounded(*self._held.popleft())

    @override
    def rest(self) -> Iterator[ClientReply]:
        while self._held:
            yield self._bounded(*self._held.popleft())
        for kind, values in self._said.items():
            median = median_of(values)
            if kind != EXAMPLES and median < math.inf:
                largest = max(median, self.largest_median.get(kind, 0.0))
                self.largest_median[kind] = largest

    @override
    def state(self) -> State:
        return dict(self.largest_median)

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self.largest_median = dict(state)

    def _measured(self, reply: ClientReply, origins: Origins) -> Amounts:
        amounts = {EXAMPLES: reply.num_examples}
        amounts |= {n: reply.metrics[n] for n in self.steered_by if n in reply.metrics}
        if self.max_update_norm == NO_LIMIT:
            return amounts
        for record, arrays in reply.arrays.items():
            if record in origins:
                origin = origins[record]
                known = reply.lengths.pop((record, id(origin)), None)
                if known is None:
                    known = length(trained(arrays), origin, self._changes)
                measured = length(statistics(arrays), origin, self._changes)
                amounts |= {record: known, f"{record} {STATISTICS}": measured}
            elif record in _VECTORS:
                amounts[record] = length(arrays, {}, self._changes)
        return amounts

    def _bounded(
        self, reply: ClientReply, amounts: Amounts, origins: Origins
    ) -> ClientReply:
        """Return a reply with what counts of it."""
        for kind, amount in amounts.items():
            median = median_of(self._said.get(kind, ()))
            largest = self.largest_median.get(kind, 0.0)
            counts = self._limit_of(kind).of(amount, median, largest)
            if counts >= amount:
                continue
            reply = self._with(reply, kind, counts, amount, origins)
            of_round = "" if median == math.inf else f": the round's median is {median:g}"
            self.tell(
                reply.client_id,
                f"{_named(kind)} {amount:g} counts as {counts:g}{of_round}",
            )
        return reply

    def _limit_of(self, kind: str) -> Limit:
        if kind == EXAMPLES:
            return self.max_examples
        return self.steered_by.get(kind, self.max_update_norm)

    def _with(
        self, reply: ClientReply, kind: str, counts: float, said: float, origins: Origins
    ) -> ClientReply:
        """Return a reply in which one kind of amount is lowered."""
        if kind == EXAMPLES:
            return replace(reply, num_examples=counts, claimed_examples=said)
        if kind in self.steered_by:
            return replace(reply, metrics={**reply.metrics, kind: counts})
        record, _, part = kind.partition(" ")
        origin = origins.get(record, {})
        arrays = reply.arrays[record]
        chosen = statistics(arrays) if part else trained(arrays)
        scaled = {n: shortened(a, origin.get(n), counts / said) for n, a in chosen.items()}
        return replace(reply, arrays={**reply.arrays, record: {**arrays, **scaled}})


def shortened(
    array: NDArray[Any], origin: NDArray[Any] | None, factor: float
) -> NDArray[Any]:
    """Return ``origin + factor * (array - origin)`` in the array's dtype."""
    if array.dtype.kind != "f":
        return array
    start = 0.0 if origin is None else np.asarray(origin, dtype=np.float64)
    # Never their difference, which may overflow.
    moved = (1.0 - factor) * start + factor * np.asarray(array, dtype=np.float64)
    return np.asarray(moved).astype(array.dtype)


def _named(kind: str) -> str:
    """Return what an amount is, for a log."""
    record, _, part = kind.partition(" ")
    if part:
        return "length of its statistics"
    names = {ARRAYS: "length of its update", EXAMPLES: EXAMPLES}
    is_vector = record in (*_MODELS, *_VECTORS) or is_model_record(record)
    return names.get(kind, f"length of its {record}" if is_vector else kind)
