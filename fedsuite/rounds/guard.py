"""The guard: bounds on what one reply can say, before anything else sees it.

A guard maps replies to replies. It knows no method: FedVARP, layers and methods see what it
lets through. It looks at the number of examples, and at the length of each record: of the
update where the record is a model that was sent, with statistics of normalisation layers
apart, and of the arrays themselves in all others.

- **Examples.** Where the server knows a client's size, the client counts for no more. Of
  four clients or more, none counts for more than the others together.
- **Lengths.** They are compared with the median of the round, and with the median of the
  last rounds' medians, of which each may be at most GROWTH times the one before. A client
  with more rows than the median one takes more steps, and may move as many times farther.
  A length of more than BELIEVED of these is *not believed*: it counts as the median. Fewer
  than FEWEST replies are compared with what is remembered alone, and in a first round with
  the model's own length.

A client's row in ``clients.jsonl`` gets the length of its update as it came,
``update_norm``, and that length over the round's median, ``norm_ratio``.

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

from fedsuite.core.logs import ServerLogger, in_own_run
from fedsuite.messages.records import ARRAYS, EVALUATE, TRAIN, Arrays, is_model_record
from fedsuite.rounds.average import FEWEST_OF_HALF
from fedsuite.rounds.changes import Changes, length, statistics, trained
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply

logger = ServerLogger(__name__)

HELD = 8
"""Replies that are held before the first is judged."""

FEWEST = 3
"""Fewer replies have no median: they are compared with what is remembered alone."""

BELIEVED_COUNT = 100.0
"""Medians up to which a number of examples is believed that the server does not know."""

BELIEVED = 10.0
"""Medians up to which a length is believed."""

GROWTH = 2.0
"""Largest ratio of a round's median to the one that is remembered."""

REMEMBERED = 10
"""Rounds whose medians are remembered."""

EXAMPLES, STATISTICS = "num-examples", "statistics"

_MODELS = (ARRAYS, "first-step")

Amounts = dict[str, float]
"""What a reply says, by kind of amount."""

Origins = Mapping[str, Arrays]
"""What each model of a reply was before training, by its record."""

Tell = Callable[[int | None, str], None]
"""Hears of what was changed in a reply, and of its client; None where none is to blame."""


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
    def parse(cls, name: str, text: float | str, believed: float) -> "Limit":
        """Return the limit that a key's value says: a number, or "median x 3", ...

        Raises
        ------
        ValueError
            If the number of medians is 0.
        """
        if isinstance(text, float | int):
            return cls(at=float(text))
        if text == "auto":
            return cls(believed=believed)
        if text == "off":
            return cls()
        medians = float(text.rpartition("x")[2])
        if medians == 0:
            raise ValueError(f"{name} = {text!r}: expected more than 0 medians")
        return cls(medians=medians)

    def of(self, amount: float, median: float, usual: float) -> float:
        """Return what counts of an amount.

        Parameters
        ----------
        amount, median
            That of a client, and the round's.
        usual
            What a believed amount is compared with.
        """
        if amount > self.believed * usual:
            return min(usual, median)
        return min(amount, self.at, self.medians * median)


NO_LIMIT = Limit()


def lower_median(rising: Sequence[float]) -> float:
    """Return the lower median of values that rise; infinity of none."""
    return rising[(len(rising) - 1) // 2] if rising else math.inf


class Remembered:
    """Medians of the last rounds, by kind of amount; what one round adds is bounded.

    Parameters
    ----------
    state
        What :meth:`state` returned.
    """

    def __init__(self, state: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        self._medians, self._few = (
            {kind: list(values) for kind, values in state.get(name, {}).items()}
            for name in ("medians", "few")
        )

    def state(self) -> State:
        """Return all that is remembered."""
        return {"medians": dict(self._medians), "few": dict(self._few)}

    def usual(self, kind: str) -> float:
        """Return the median of the last medians; infinity of none."""
        return lower_median(sorted(self._medians.get(kind, ())))

    def add(self, kind: str, amounts: Sequence[float]) -> None:
        """Take in the amounts of an exchange; too few for a median wait for more."""
        waiting = [*self._few.pop(kind, ()), *amounts]
        if len(waiting) < FEWEST:
            self._few[kind] = waiting
            return
        counted = min(lower_median(sorted(waiting)), GROWTH * self.usual(kind))
        self._medians[kind] = [*self._medians.get(kind, ()), counted][-REMEMBERED:]


@dataclass
class Guard(Stage):
    """Bounds what one reply can say.

    Parameters
    ----------
    max_examples, max_update_norm
        The limits of these keys.
    tell
        Hears of each change.
    sizes
        Client to its number of training rows, where the server knows it.
    largest_share
        1 lets one client have more examples than all others together.
    bounds_training
        Whether training is bounded too, and not measured alone: under noise, bounds by the
        others' replies would change what one client can move.

    Attributes
    ----------
    norms
        Client to the length of its update in this round.
    """

    name: ClassVar[str] = "guard"

    max_examples: Limit = Limit(believed=BELIEVED_COUNT)
    max_update_norm: Limit = Limit(believed=BELIEVED)
    tell: Tell = field(default=lambda client_id, change: None, repr=False)
    sizes: Mapping[int, int] = field(default_factory=dict, repr=False)
    remembered: Remembered = field(default_factory=lambda: Remembered({}))
    largest_share: float = 0.5
    bounds_training: bool = True
    norms: dict[int, float] = field(default_factory=dict, repr=False)
    _trains: bool = field(default=False, repr=False)
    _evaluates: bool = field(default=False, repr=False)
    _off: bool = field(default=False, repr=False)
    _sizes: dict[int, float] = field(default_factory=dict, repr=False)
    _largest_sizes: dict[int, float] = field(default_factory=dict, repr=False)
    _told_keys: set[str] = field(default_factory=set, repr=False)
    _one_of: bool = field(default=False, repr=False)
    _usual_size: float = field(default=math.inf, repr=False)
    _models: dict[int, Arrays] = field(default_factory=dict, repr=False)
    _changes: Changes = field(default_factory=Changes, repr=False)
    _shared: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    _said: dict[str, list[float]] = field(default_factory=dict, repr=False)
    _new: dict[str, list[float]] = field(default_factory=dict, repr=False)
    _held: deque[tuple[ClientReply, Amounts, Origins]] = field(
        default_factory=deque, repr=False
    )

    def begin(self) -> None:
        """Forget the lengths of a round before that did not count."""
        self.norms, self._new = {}, {}

    @override
    def open(self, exchange: Exchange) -> None:
        # Some methods send models in one exchange and get them back in the next.
        own = exchange.own.items()
        sent = {k: records[ARRAYS] for k, records in own if ARRAYS in records}
        self._models |= sent
        self._shared = exchange.shared
        sends = bool(exchange.shared.get(ARRAYS) or sent)
        self._trains = sends and exchange.message_type == TRAIN
        unbounded = (self.max_examples, self.max_update_norm) == (NO_LIMIT, NO_LIMIT)
        self._evaluates = exchange.message_type == EVALUATE
        bounds = self._evaluates or self.bounds_training
        self._off = unbounded or not bounds
        self._said = {}
        self._held.clear()
        self._one_of = exchange.expected.one_of
        # Rows of training say nothing of those of an evaluation.
        asked = () if self._evaluates else exchange.client_ids
        self._sizes = {k: float(self.sizes[k]) for k in asked if k in self.sizes}
        all_known = len(self._sizes) == len(asked) and self.largest_share < 1
        self._largest_sizes = (without_majority if all_known else dict)(self._sizes)
        positive = sorted(size for size in self._sizes.values() if size > 0)
        self._usual_size = lower_median(positive)

    @override
    def reply(self, reply: ClientReply) -> Iterator[ClientReply]:
        model = self._shared.get(ARRAYS) or self._models.get(reply.client_id, {})
        norm = None
        if self._trains and model and ARRAYS in reply.arrays:
            norm = length(trained(reply.arrays[ARRAYS]), model, self._changes)
            self.norms[reply.client_id] = norm
        if self._off:
            yield reply
            return
        reply = self._of_known_size(reply)
        others = {n: a for n, a in self._shared.items() if is_model_record(n)}
        origins = {**dict.fromkeys(_MODELS, model), **others}
        amounts = self._measured(reply, origins, norm)
        for kind, amount in amounts.items():
            if amount > 0:
                # Sorted anew for each reply, very many replies take very long.
                insort(self._said.setdefault(self._pool(kind, reply), []), amount)
        self._held.append((reply, amounts, origins))
        limits = self.max_examples, self.max_update_norm
        whole = any(limit.medians < math.inf for limit in limits)
        if len(self._held) > HELD and not whole:
            yield self._bounded(*self._held.popleft())

    @override
    def rest(self) -> Iterator[ClientReply]:
        while self._held:
            yield self._bounded(*self._held.popleft())
        lengths = {k: amounts for k, amounts in self._said.items() if k != EXAMPLES}
        for kind, amounts in lengths.items():
            if self._evaluates:
                # No step follows, by which it could fail to count.
                self.remembered.add(kind, amounts)
            else:
                self._new.setdefault(kind, []).extend(amounts)
        self._said = {}

    @override
    def counted(self) -> None:
        for kind, amounts in self._new.items():
            self.remembered.add(kind, amounts)
        self._new = {}

    def tell_norms(self, report: PhaseReport) -> None:
        """Add the columns of lengths to the clients' rows."""
        weights = report.weights()
        norms = {k: norm for k, norm in self.norms.items() if k in weights}
        median = float(np.median(list(norms.values()))) if norms else 0.0
        for client_id, norm in norms.items():
            ratio = {"norm_ratio": norm / median} if median > 0 else {}
            report.annotate(client_id, update_norm=norm, **ratio)

    @override
    def state(self) -> State:
        return self.remembered.state()

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self.remembered = Remembered(state)
        self._new = {}

    def _of_known_size(self, reply: ClientReply) -> ClientReply:
        """Return a reply that claims no more examples than the server knows of."""
        client_id, said = reply.client_id, reply.num_examples
        if client_id not in self._sizes or self.max_examples == NO_LIMIT:
            return reply
        counts = min(said, self._sizes[client_id])
        if counts < said:
            self.tell(client_id, f"{EXAMPLES} {said:g} counts as {counts:g}, its rows")
            self._tell_key("max-examples")
        largest = self._largest_sizes[client_id]
        if largest < counts:
            counts = largest
            self._tell_majority(client_id)
        if counts == said:
            return reply
        return replace(reply, num_examples=counts, claimed_examples=said)

    def _tell_majority(self, client_id: int) -> None:
        if "max-client-weight" not in self._told_keys:
            self._told_keys.add("max-client-weight")
            logger.warning(
                "client %s has more rows than all others together, and counts for as many "
                "as they do (%s = 1 lets it count whole), here and later",
                client_id,
                _spelled("max-client-weight"),
            )

    def _tell_key(self, key: str) -> None:
        """Name, once, the key that bounds what counts of a reply."""
        if key not in self._told_keys:
            self._told_keys.add(key)
            name = _spelled(key)
            logger.warning(
                "%s bounds what counts of a reply, here and later: %s = 'off' lets each "
                "client count whole, also one that lies",
                name,
                name,
            )

    def _measured(
        self, reply: ClientReply, origins: Origins, norm: float | None
    ) -> Amounts:
        amounts = {EXAMPLES: reply.num_examples}
        if self.max_update_norm == NO_LIMIT:
            return amounts
        for record, arrays in reply.arrays.items():
            origin = origins.get(record, {})
            known = norm if record == ARRAYS else None
            if known is None:
                known = length(trained(arrays), origin, self._changes)
            measured = length(statistics(arrays), origin, self._changes)
            amounts |= {record: known, f"{record} {STATISTICS}": measured}
        return amounts

    def _bounded(
        self, reply: ClientReply, amounts: Amounts, origins: Origins
    ) -> ClientReply:
        """Return a reply with what counts of it."""
        for kind, amount in amounts.items():
            pool = self._pool(kind, reply)
            said = self._said.get(pool, ())
            came = lower_median(said) if len(said) >= FEWEST else 0.0
            if kind == EXAMPLES:
                limit = self.max_examples
                median = usual = came or math.inf
            else:
                limit = self.max_update_norm
                median, usual = self._usual(pool, said, origins.get(kind))
                work = self._work_of(reply.client_id)
                usual, came = usual * work, came * work
            counts = limit.of(amount, median, usual)
            if counts >= amount:
                continue
            reply = self._with(reply, kind, counts, amount, origins)
            of_round = "" if median == math.inf else f": the round's median is {median:g}"
            change = f"{_named(kind)} {amount:g} counts as {counts:g}{of_round}"
            if limit.believed < math.inf and amount <= limit.believed * came:
                self.tell(None, f"{change}, and others are as long: none is to blame")
            else:
                self.tell(reply.client_id, change)
            self._tell_key("max-examples" if kind == EXAMPLES else "max-update-norm")
        return reply

    def _pool(self, kind: str, reply: ClientReply) -> str:
        """Return the name of what an amount is compared with.

        Where each client chooses one of several models, few may choose the same. Where
        some rounds send a part of a model, its updates are shorter.
        """
        record, space, part = kind.partition(" ")
        if record not in reply.arrays:
            return kind
        number = len(reply.arrays[record])
        record = ARRAYS if self._one_of and is_model_record(record) else record
        return f"{record}{space}{part} of {number}"

    def _usual(
        self, pool: str, said: Sequence[float], origin: Arrays | None
    ) -> tuple[float, float]:
        """Return the round's median as it counts, and what lengths are compared with."""
        median, remembered = lower_median(said), self.remembered.usual(pool)
        if len(said) < FEWEST:
            if remembered == math.inf and origin:
                remembered = max(length(origin, {}, self._changes), 1.0)
            return remembered, remembered
        if remembered == math.inf:
            return median, median
        median = min(median, GROWTH * remembered)
        return median, max(median, remembered)

    def _work_of(self, client_id: int) -> float:
        """Return how many times farther than others a client of its size may move."""
        return max(self._sizes.get(client_id, 0.0) / self._usual_size, 1.0)

    def _with(
        self, reply: ClientReply, kind: str, counts: float, said: float, origins: Origins
    ) -> ClientReply:
        """Return a reply in which one kind of amount is lowered."""
        if kind == EXAMPLES:
            return replace(reply, num_examples=counts, claimed_examples=said)
        record, _, part = kind.partition(" ")
        origin = origins.get(record, {})
        arrays = reply.arrays[record]
        chosen = statistics(arrays) if part else trained(arrays)
        scaled = {n: shortened(a, origin.get(n), counts / said) for n, a in chosen.items()}
        return replace(reply, arrays={**reply.arrays, record: {**arrays, **scaled}})


def without_majority(sizes: Mapping[int, float]) -> dict[int, float]:
    """Return sizes of which, of four or more, none is above the sum of the others."""
    total = sum(sizes.values())
    if len(sizes) < FEWEST_OF_HALF:
        return dict(sizes)
    return {client_id: min(size, total - size) for client_id, size in sizes.items()}


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


def _spelled(key: str) -> str:
    """Return a key as who reads the log writes it: a keyword in an app of its own."""
    return key if in_own_run() else key.replace("-", "_")


def _named(kind: str) -> str:
    """Return what an amount is, for a log."""
    record, _, part = kind.partition(" ")
    if part:
        return "length of its statistics"
    names = {ARRAYS: "length of its update", EXAMPLES: EXAMPLES}
    return names.get(kind, f"length of its {record}")
