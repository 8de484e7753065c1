"""Lies: their forms, how they are written, and the grid that puts them into replies.

A lie is some acts and the rows that the liar trains on, written in words::

    train record arrays: length -99 every; train metric num-examples: times 99 odd; data own

An act names the phase, what it is about, the form with its number c, and the rounds.
Lengths and metrics are in medians of the honest replies to the same exchange, which the
liar knows: more than a real one would.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.core.rng import numpy_stream
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    CONFIG,
    EVALUATE,
    HELLO,
    SERVER_ROUND,
    TRAIN,
    Arrays,
    client_record,
    records_of,
    split_replies,
    unpack_requests,
)
from fedsuite.messages.statistics import is_statistic
from fedsuite.workarounds.prompt_grid import PromptGrid, once

Kind = Literal["record", "counts", "metric", "reply"]

ALL = "*"
"""Name that stands for all records or all metrics."""

FORMS: Mapping[Kind, tuple[str, ...]] = {
    "record": ("length", "random", "others", "deviation", "fill", "stale"),
    "counts": ("times", "set", "one", "reversed", "stale"),
    "metric": ("times", "set", "without"),
    "reply": ("absent", "repeated", "stale"),
}
"""What is done to what; counts are a record's arrays of whole numbers, such as of classes.

=========== ======================================================================
form        what the liar sends
=========== ======================================================================
length      its own update, as long as c medians
random      the honest mean plus c medians of a random direction
others      the honest mean plus c medians of its own direction
deviation   the honest mean plus c standard deviations by coordinate
fill        c times random signs, as each number
stale       what it sent in an earlier round
times, set  c medians, or c, as the metric; c times its counts, or c as each
one         all that its counts add up to in the largest
reversed    its counts, the last first
without     all but the metric
absent      nothing
repeated    its reply twice
=========== ======================================================================
"""

NUMBERED = ("length", "random", "others", "deviation", "fill", "times", "set")

WHEN = ("every", "odd", "even", "later", "third", "last")
"""Rounds of a lie; ``later`` are all but the first."""

DATA = ("own", "flipped", "one-class", "trigger")
"""Rows that a liar trains on."""

PROBE_OF_HONEST = 0.1
"""Length of the direction that an honest client's update gets, in the update's lengths."""

_ACT = re.compile(
    r"(train|evaluate) (record|counts|metric|reply) ?(\S*): (\S+?)(?: (\S+))? (\w+)"
)


class Target(NamedTuple):
    """What a lie is about: phase, kind and name, as the liar's own replies have them."""

    phase: str
    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


@dataclass(frozen=True)
class Act:
    """One thing that a liar does."""

    target: Target
    form: str
    c: float = 1.0
    when: str = "every"

    def __str__(self) -> str:
        number = f" {self.c:.6g}" if self.form in NUMBERED else ""
        return f"{self.target}: {self.form}{number} {self.when}"

    @classmethod
    def parse(cls, text: str) -> "Act":
        """Return the act that :meth:`__str__` wrote."""
        match = _ACT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no act")
        phase, kind, name, form, c, when = match.groups()
        target = Target(phase, kind, name)  # type: ignore[arg-type]
        return cls(target, form, float(c or 1.0), when)

    def now(self, server_round: int, last: int) -> bool:
        """Return whether the liar does it in a round."""
        return {
            "every": True,
            "odd": server_round % 2 == 1,
            "even": server_round % 2 == 0,
            "later": server_round > 1,
            "third": server_round == 3,
            "last": server_round == last,
        }[self.when]


@dataclass(frozen=True)
class Lie:
    """All that a liar does in a run; ``probe`` measures its share of the last round."""

    acts: tuple[Act, ...] = ()
    data: str = "own"
    probe: bool = False

    def __str__(self) -> str:
        more = [f"data {self.data}"] if self.data != "own" else []
        return "; ".join([*map(str, self.acts), *more, *["probe"] * self.probe]) or "none"

    @classmethod
    def parse(cls, text: str) -> "Lie":
        """Return the lie that :meth:`__str__` wrote."""
        acts, data, probe = [], "own", False
        for part in text.split("; "):
            if part == "probe":
                probe = True
            elif part.startswith("data "):
                data = part.removeprefix("data ")
            elif part != "none":
                acts.append(Act.parse(part))
        return cls(tuple(acts), data, probe)


ABSENT = Lie((Act(Target(TRAIN, "reply"), "absent"),))
"""A client that never answers but to evaluation."""


@dataclass
class Entry:
    """What one client answers, and what it was asked."""

    client_id: int
    message: Message
    records: dict[str, Arrays]
    metrics: dict[str, MetricRecord]
    received: Mapping[str, Arrays]

    def start_of(self, name: str, trained: frozenset[str]) -> Arrays:
        """Return what a record's change is measured from."""
        if name in trained:
            return self.received.get(ARRAYS, {})
        return self.received.get(name, {}) if name.startswith("model-") else {}


@dataclass
class Probe:
    """Directions that one client each sends in the last round, of unit length.

    Parameters
    ----------
    names
        Arrays that they are of, in order.
    directions, lengths
        Client to its direction, and to how much of it the client sent.
    """

    names: tuple[str, ...] = ()
    directions: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    lengths: dict[int, float] = field(default_factory=dict)

    def shares(self, final: Arrays) -> dict[int, float]:
        """Return each client's share of the final model; empty where that is not known."""
        if not self.lengths or not set(self.names) <= set(final):
            return {}
        vector = flat(final, self.names)
        found = {
            k: abs(float(vector @ self.directions[k])) / length
            for k, length in self.lengths.items()
            if length > 0
        }
        total = sum(found.values())
        return {k: value / total if total > 0 else 0.0 for k, value in found.items()}


class LyingGrid(PromptGrid):
    """A grid on which some clients lie.

    Parameters
    ----------
    grid
        Grid that sends and receives.
    lie, liars
        What they do, and who they are.
    trained
        Records of the method's replies that hold the received model after training.
    num_rounds, seed
        Rounds of the run, and seed of what is random in a lie.
    together
        Whether all liars send what the first of them sends.
    """

    def __init__(
        self,
        grid: Grid,
        lie: Lie,
        liars: Sequence[int],
        trained: frozenset[str],
        num_rounds: int,
        seed: int,
        together: bool = False,
    ) -> None:
        super().__init__(grid)
        self._lie, self._liars, self._trained = lie, tuple(liars), trained
        self._last, self._seed, self._together = num_rounds, seed, together
        self._before: dict[tuple[int, str], Arrays] = {}
        self._replies_before: dict[tuple[int, str], Message] = {}
        self.targets: set[Target] = set()
        self.probe = Probe()

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        sent = list(messages)
        replies = list(once(self._grid.send_and_receive(sent, timeout=timeout)))
        kind = sent[0].metadata.message_type if sent else HELLO
        if kind == HELLO:
            return iter(replies)
        config = records_of(sent[0].content, ConfigRecord).get(CONFIG, ConfigRecord())
        number = config.get(SERVER_ROUND, 1)
        server_round = number if isinstance(number, int) else 1
        entries = _entries(sent, replies)
        phase = EVALUATE if kind.partition(".")[0] == EVALUATE else TRAIN
        for liar in self._liars:
            if liar in entries:
                self._note(entries[liar], phase)
        if self._lie.probe and server_round == self._last and phase == TRAIN:
            self._put_probe(entries)
        came = replies
        for number, liar in enumerate(self._liars):
            if liar in entries:
                source = entries[self._liars[0]] if self._together else None
                came = self._lied(came, entries, liar, phase, server_round, source, number)
        return iter(came)

    def _note(self, entry: Entry, phase: str) -> None:
        self.targets.add(Target(phase, "reply"))
        for name, arrays in entry.records.items():
            counts = counts_of(arrays)
            if counts:
                self.targets.add(Target(phase, "counts", name))
            if len(counts) < len(arrays) or not arrays:
                self.targets.add(Target(phase, "record", name))
        self.targets |= {
            Target(phase, "metric", name) for m in entry.metrics.values() for name in m
        }

    def _lied(
        self,
        replies: list[Message],
        entries: Mapping[int, Entry],
        liar: int,
        phase: str,
        server_round: int,
        source: Entry | None,
        number: int,
    ) -> list[Message]:
        """Return the replies with one liar's as it lies."""
        entry, content = entries[liar], entries[liar].message.content
        kind = entry.message.metadata.message_type
        honest = [e for k, e in entries.items() if k not in self._liars]
        draws = numpy_stream(self._seed, f"lie-{kind}", server_round, number)
        probed = bool(self.probe.lengths) and server_round == self._last
        came = replies
        for act in self._lie.acts:
            target = act.target
            if target.phase != phase or not act.now(server_round, self._last):
                continue
            if target.kind == "record":
                for name in [n for n in entry.records if target.name in (ALL, n)]:
                    if probed and self._is_probed(entry, name):
                        continue
                    key = client_record(liar, name)
                    lie = self._record(entry, name, act, honest, draws)
                    content[key] = to_record(lie)
            elif target.kind == "counts":
                for name in [n for n in entry.records if target.name in (ALL, n)]:
                    key = client_record(liar, name)
                    # What another act made of the record's other arrays stays.
                    record = content[key]
                    assert isinstance(record, ArrayRecord)
                    lie = to_arrays(record)
                    before = self._before.get((liar, kind + name), {})
                    content[key] = to_record({**lie, **lied_counts(lie, act, before)})
            elif target.kind == "metric":
                for metrics in entry.metrics.values():
                    for name in [n for n in metrics if target.name in (ALL, n)]:
                        _change_metric(metrics, name, act, honest)
            elif act.form == "absent":
                came = [reply for reply in came if reply is not entry.message]
            elif act.form == "repeated":
                came = [*came, entry.message]
            elif (earlier := self._replies_before.get((liar, kind))) is not None:
                came = [earlier if reply is entry.message else reply for reply in came]
        if source is not None and source is not entry:
            for name in source.records:
                key = client_record(source.client_id, name)
                if key in source.message.content:
                    content[client_record(liar, name)] = source.message.content[key]
        self._replies_before[liar, kind] = entry.message
        for name, arrays in entry.records.items():
            self._before[liar, kind + name] = arrays
        return came

    def _record(
        self,
        entry: Entry,
        name: str,
        act: Act,
        honest: Sequence[Entry],
        draws: np.random.Generator,
    ) -> Arrays:
        """Return a record of the liar's as an act has it."""
        arrays = entry.records[name]
        if act.form == "stale":
            key = entry.client_id, entry.message.metadata.message_type + name
            return self._before.get(key, arrays)
        names = [k for k, a in arrays.items() if not is_statistic(k, a)]
        if act.form == "fill":
            signs = {k: draws.choice((-act.c, act.c), arrays[k].shape) for k in names}
            return {**arrays, **{k: _cast(signs[k], arrays[k]) for k in names}}
        start = entry.start_of(name, self._trained)
        own = flat(arrays, names) - flat(start, names, arrays)
        others = [
            flat(e.records[name], names)
            - flat(e.start_of(name, self._trained), names, arrays)
            for e in honest
            if _alike(e.records.get(name, {}), arrays, names)
        ]
        lengths = [float(np.linalg.norm(other)) for other in others]
        median = float(np.median(lengths)) if lengths else float(np.linalg.norm(own))
        mean = sum(others, np.zeros_like(own)) / len(others) if others else own
        if act.form == "length":
            change = act.c * median * _unit(own)
        elif act.form == "random":
            change = mean + act.c * median * _unit(draws.standard_normal(own.shape))
        elif act.form == "others":
            change = mean + act.c * median * _unit(mean)
        else:
            change = mean + act.c * np.std(others or [own], axis=0)
        return _moved(arrays, names, flat(start, names, arrays) + change)

    # ------------------------------------------------------------------------- the probe

    def _is_probed(self, entry: Entry, name: str) -> bool:
        model = entry.received.get(ARRAYS, {})
        arrays = entry.records[name]
        names = [k for k, a in arrays.items() if not is_statistic(k, a)]
        return bool(names) and _alike(model, arrays, names)

    def _put_probe(self, entries: Mapping[int, Entry]) -> None:
        """Give each client a direction of its own, the liars nothing else."""
        found = [
            (entry, name)
            for entry in entries.values()
            for name in entry.records
            if self._is_probed(entry, name)
        ]
        if not found or self.probe.lengths:
            return
        arrays = found[0][0].records[found[0][1]]
        names = tuple(k for k, a in arrays.items() if not is_statistic(k, a))
        found = [f for f in found if _alike(f[0].records[f[1]], arrays, names)]
        changes = [
            flat(e.records[n], names) - flat(e.start_of(n, self._trained), names, arrays)
            for e, n in found
        ]
        model = flat(found[0][0].received[ARRAYS], names)
        draws = numpy_stream(self._seed, "probe")
        clients = sorted({entry.client_id for entry, _ in found})
        random = draws.standard_normal((len(model), len(clients)))
        basis = np.linalg.qr(np.column_stack([model, *changes, random]))[0]
        directions = basis[:, -len(clients) :].T
        self.probe.names = names
        self.probe.directions = dict(zip(clients, directions, strict=True))
        lengths = [float(np.linalg.norm(change)) for change in changes]
        honest = [
            length
            for (entry, _), length in zip(found, lengths, strict=True)
            if entry.client_id not in self._liars
        ]
        usual = float(np.median(honest)) if honest else 1.0
        for (entry, name), change, length in zip(found, changes, lengths, strict=True):
            k = entry.client_id
            lies = k in self._liars
            amount = usual if lies else PROBE_OF_HONEST * length
            kept = 0.0 if lies else 1.0
            self.probe.lengths.setdefault(k, amount)
            start = flat(entry.start_of(name, self._trained), names, arrays)
            own = entry.records[name]
            moved = _moved(
                own, names, start + kept * change + amount * directions[clients.index(k)]
            )
            entry.message.content[client_record(k, name)] = to_record(moved)


def _entries(sent: Sequence[Message], replies: Sequence[Message]) -> dict[int, Entry]:
    """Return what each client answers, by client."""
    asked = {
        request.client_id: request.arrays
        for message in sent
        for request in unpack_requests(
            message.content, message.metadata.message_type, message.metadata.group_id, 0
        )[0]
    }
    found = {}
    for message in replies:
        if not message.has_content():
            continue
        for client_id, entry in split_replies(message.content, asked).items():
            records = records_of(entry, ArrayRecord)
            found[client_id] = Entry(
                client_id,
                message,
                {name: to_arrays(record) for name, record in records.items()},
                records_of(entry, MetricRecord),
                asked[client_id],
            )
    return dict(sorted(found.items()))


def counts_of(arrays: Arrays) -> Arrays:
    """Return the arrays of whole numbers."""
    return {name: array for name, array in arrays.items() if array.dtype.kind in "iu"}


def lied_counts(arrays: Arrays, act: Act, before: Arrays) -> Arrays:
    """Return a record's counts as an act has them; the dtype's range holds."""
    made = {}
    for name, own in counts_of(arrays).items():
        numbers = own.astype(np.float64)
        if act.form == "times":
            numbers = act.c * numbers
        elif act.form == "set":
            numbers = np.full_like(numbers, act.c)
        elif act.form == "one":
            numbers = np.where(np.arange(own.size) == own.argmax(), numbers.sum(), 0.0)
        elif act.form == "reversed":
            numbers = numbers[::-1]
        else:
            numbers = before.get(name, own).astype(np.float64)
        limits = np.iinfo(own.dtype)
        # The largest number of 64 bits is none of float64's, and its neighbour overflows.
        most = np.nextafter(float(limits.max), 0.0)
        whole = np.rint(np.nan_to_num(numbers, nan=0.0))
        made[name] = np.clip(whole, float(limits.min), most).astype(own.dtype)
    return made


def _change_metric(
    record: MetricRecord, name: str, act: Act, honest: Sequence[Entry]
) -> None:
    if act.form == "without":
        del record[name]
        return
    own = record[name]
    if isinstance(own, list):
        return
    others = [m[name] for e in honest for m in e.metrics.values() if name in m]
    numbers = [float(n) for n in others if not isinstance(n, list)]
    usual = float(np.median(numbers)) if numbers else float(own)
    record[name] = float(act.c if act.form == "set" else act.c * usual)


def flat(
    arrays: Arrays, names: Iterable[str], like: Arrays | None = None
) -> NDArray[np.float64]:
    """Return arrays as one vector; what is missing is 0, in the shapes of ``like``."""
    shapes = like or arrays
    parts = [
        np.asarray(arrays[n], dtype=np.float64).reshape(-1)
        if n in arrays and arrays[n].shape == shapes[n].shape
        else np.zeros(shapes[n].size)
        for n in names
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def _moved(arrays: Arrays, names: Iterable[str], vector: NDArray[np.float64]) -> Arrays:
    """Return arrays with those of some names as a vector says."""
    made, place = dict(arrays), 0
    for name in names:
        array = arrays[name]
        part = vector[place : place + array.size].reshape(array.shape)
        made[name], place = _cast(part, array), place + array.size
    return made


def _cast(values: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return values.astype(like.dtype)


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector


def _alike(arrays: Arrays, other: Arrays, names: Iterable[str]) -> bool:
    return all(k in arrays and arrays[k].shape == other[k].shape for k in names)
