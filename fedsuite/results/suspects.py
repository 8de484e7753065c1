"""Clients that stand out over a run's rounds, the oddest first; often none does.

Reads ``clients.jsonl``, which has what clients said, what they weighed and how long their
updates were (:mod:`fedsuite.rounds.changes`), the events of replies that were refused,
bounded, or never came, and the sizes that the partition gives.

A client is odd in a round by the strongest of these grounds, each from 0 to 1:

- its reply was refused, bounded, or sent twice, or a number in it is impossible: 1;
- it makes no claim where most do, or claims another number of rows than the server knows
  or than it claimed at first: 1;
- nothing came: 0.5;
- it weighed more than the others for its rows, or more than half of the average;
- its update was long or short, or a loss or number of steps large or small. The distance
  from the round's median, by the logarithm, is in spreads: medians of the others'
  distances, of the round and of the whole run, at least :data:`LEAST_SPREAD`.

Where half of those asked fail, or do not answer, that is no ground against any: the model
or the server did it to them. A client is as odd as its rounds are on average, so that what
persists counts. Below :data:`STANDS_OUT` it is like the others. Directions of updates are
no ground: honest clients with other data differ in them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsuite.core.errors import RunError
from fedsuite.results.analysis_files import Output, Table
from fedsuite.results.layout import LEFT_OUT
from fedsuite.results.reader import Client, Run, load_run
from fedsuite.rounds.kinds import ABSENT, Kind
from fedsuite.rounds.report import RESERVED

TRAIN, EVALUATE = "train", "evaluate"
"""Phases, as the tables name them."""

NOTE = (
    "Far from the others is not dishonest: a hospital with other patients looks the same. "
    "Look at a client's data before you exclude it. Lengths, weights and losses are in "
    "medians of the round. A lie within the honest spread is not seen here: the key "
    "aggregator bounds what it does."
)

COLUMNS = (
    "client",
    "odd %",
    "because",
    "rounds",
    "refused %",
    "absent %",
    "bounded %",
    "length, median",
    "length, largest",
    "weight, mean",
    "examples, largest",
    "claim cut, largest",
)

STANDS_OUT = 0.15
"""Oddness, the mean over rounds, below which a client is like the others."""

USUAL_SPREADS, FAR_SPREADS = 5.0, 20.0
"""Spreads up to which a number is usual, and from which nothing could be odder."""

LEAST_SPREAD = 0.1
"""Clients that are all alike differ by as much, in logarithms."""

_USUAL, _FAR = 1.5, 10.0
"""Medians up to which a weight is usual, and from which nothing could be odder."""

_WIDE = 5.0
"""Weights for a number of examples differ so many times more; so do lengths."""

_ENOUGH = 4
"""With fewer clients one may own more than half of the average."""

_FEWEST = 3
"""Updates of a round with fewer are compared with those of the rounds around it."""

_SMALL = 0.25
"""Share of a metric's first median that is added to it: near 0 all ratios are large."""

LENGTH, STEPS, RATE = "length", "num_steps", "learning_rate"


def far(medians: float) -> float:
    """Return how odd a number of medians is: 0 to 1.5, 1 from 10 on, by its logarithm."""
    if medians <= _USUAL:
        return 0.0
    return min(math.log(medians / _USUAL) / math.log(_FAR / _USUAL), 1.0)


def odd_by(distance: float, spread: float) -> float:
    """Return how odd a distance from the median is, in spreads."""
    beyond = abs(distance) / max(spread, LEAST_SPREAD) - USUAL_SPREADS
    return min(max(beyond / (FAR_SPREADS - USUAL_SPREADS), 0.0), 1.0)


class Place(NamedTuple):
    """A phase of a round."""

    server_round: int
    phase: str


@dataclass
class Suspect:
    """What is known of one client; None where the run does not say.

    Parameters
    ----------
    rounds
        Rounds in which it was to train, or was odd.
    grounds
        Ground to how odd the client was by it, of each of its rounds in which it was.
    """

    client: Client
    rounds: set[int] = field(default_factory=set)
    grounds: dict[str, dict[int, float]] = field(default_factory=dict)
    lengths: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    examples: float = 0.0
    claimed: float | None = None

    def add(self, ground: str, server_round: int, odd: float) -> None:
        """Take note of a ground; nothing that is not odd."""
        if odd > 0:
            self.rounds.add(server_round)
            self.grounds.setdefault(ground, {})[server_round] = odd

    @property
    def odd(self) -> float:
        """Mean over the client's rounds of its strongest ground in each."""
        strongest: dict[int, float] = defaultdict(float)
        for by_round in self.grounds.values():
            for server_round, odd in by_round.items():
                strongest[server_round] = max(strongest[server_round], odd)
        return sum(strongest.values()) / max(len(self.rounds), 1)

    @property
    def because(self) -> str:
        """Grounds on which it stands out, the strongest first; empty if it does not."""
        if self.odd < STANDS_OUT:
            return ""
        ordered = sorted(self.grounds.items(), key=lambda g: -sum(g[1].values()))
        return ", ".join(f"{name} in {len(rounds)}" for name, rounds in ordered)

    def share_of_rounds(self, ground: str) -> float:
        """Return the share of the client's rounds with a ground."""
        return len(self.grounds.get(ground, ())) / max(len(self.rounds), 1)

    def cells(self) -> tuple[Any, ...]:
        """Return the client's cells of the table."""
        shares = (100 * self.share_of_rounds(g) for g in ("refused", "absent", "bounded"))
        return (
            str(self.client),
            100 * self.odd,
            self.because,
            len(self.rounds),
            *shares,
            *_median_and_largest(self.lengths),
            float(np.mean(self.weights)) if self.weights else None,
            self.examples,
            self.claimed,
        )


Rows = Mapping[Client, Mapping[str, Any]]


def suspects(run: Run) -> list[Suspect]:
    """Return a run's clients, the oddest first.

    Raises
    ------
    RunError
        If the run has no lengths of updates.
    """
    rows: dict[Place, dict[Client, Mapping[str, Any]]] = defaultdict(dict)
    trained: dict[Client, list[Mapping[str, Any]]] = defaultdict(list)
    for row in run.clients():
        rows[Place(row["round"], row["phase"])][row["client"]] = row
        if row["phase"] == TRAIN:
            trained[row["client"]].append(row)
    if not any("update_norm" in row for own in trained.values() for row in own):
        raise RunError(
            f"{run.path}: no client's row has update_norm: its clients sent no models"
        )
    told = _told(run)
    clients = {k: Suspect(k) for by_client in rows.values() for k in by_client}
    for by_ground in told.values():
        for client in (k for named in by_ground.values() for k in named):
            clients.setdefault(client, Suspect(client))
    for client, own in trained.items():
        one = clients[client]
        one.lengths, one.weights = _numbers(own, "norm_ratio"), _numbers(own, "weight")
        one.examples = max(_numbers(own, "num_examples"), default=0.0)
        one.claimed = max(_numbers(own, "claimed_examples"), default=None)
    for place in sorted({*rows, *told}):
        replies, named = rows.get(place, {}), told.get(place, {})
        missing = {k for g in ("refused", "absent") for k in named.get(g, ())} - {*replies}
        asked = {*replies, *missing}
        if place.phase == TRAIN:
            for client in asked:
                clients[client].rounds.add(place.server_round)
        for ground in ("refused", "absent", "bounded", "repeated", "impossible"):
            whom = named.get(ground, set())
            alone = whom & missing if ground in ("refused", "absent") else whom & asked
            alike, those = alone, asked
            if len(asked) < _FEWEST:
                # So few say nothing of each other: all rounds do.
                alike = {
                    k for by_ground in told.values() for k in by_ground.get(ground, ())
                }
                those = {*clients}
            if ground == "bounded" or 2 * len(alike) < len(those):
                for client in alone:
                    odd = 0.5 if ground in ("absent", "bounded") else 1.0
                    clients[client].add(ground, place.server_round, odd)
        left_out = named.get("left out", set()) | named.get("impossible", set())
        for client in _lacking(replies) - left_out:
            clients[client].add("lacking", place.server_round, 1.0)
        if place.phase == TRAIN:
            for client, odd in _heavy(replies):
                clients[client].add("heavy", place.server_round, odd)
    for client, server_round, odd in _sizes(run, rows):
        clients[client].add("size", server_round, odd)
    for ground, client, server_round, odd in _far_numbers(rows):
        clients[client].add(ground, server_round, odd)
    return sorted(clients.values(), key=lambda one: (-one.odd, str(one.client)))


def _lacking(rows: Rows) -> set[Client]:
    """Return who does not make a claim that most of a round make."""
    lacking: set[Client] = set()
    for name in _claims(rows):
        without = {k for k, row in rows.items() if row.get(name) is None}
        if 2 * len(without) < len(rows):
            lacking |= without
    return lacking


def _heavy(rows: Rows) -> Iterator[tuple[Client, float]]:
    """Yield how odd the weights of a round are."""
    sizes = {k: row.get("num_examples") or 0.0 for k, row in rows.items()}
    weights = {k: row["weight"] for k, row in rows.items() if row.get("weight") is not None}
    per_row = {k: w / sizes[k] for k, w in weights.items() if sizes[k] > 0}
    median = _median(per_row.values())
    for client, weight in weights.items():
        # A large site is no liar, but no site is to own more than half.
        owned = far(_USUAL * 2 * weight) if len(weights) >= _ENOUGH else 0.0
        times = per_row.get(client, 0.0) / median if median > 0 else 0.0
        yield client, max(owned, far(times / _WIDE))


def _sizes(run: Run, rows: Mapping[Place, Rows]) -> Iterator[tuple[Client, int, float]]:
    """Yield how far claimed numbers of rows are from those that the server knows.

    Some rows may be kept for validation, of all clients the same share. Where the server
    knows nothing, a client's first claim holds.
    """
    for phase, part in ((TRAIN, TRAIN), (EVALUATE, "test")):
        table = run.class_counts(part)
        known: dict[Client, float] = {}
        for row, size in enumerate([] if table is None else table.sum(axis=1).tolist()):
            known[run.named(row)] = float(size)
        places = [place for place in sorted(rows) if place.phase == phase]
        claims = {p: {k: _claim(row) for k, row in rows[p].items()} for p in places}
        if not known:
            for by_client in claims.values():
                for client, claim in by_client.items():
                    known.setdefault(client, claim)
        shares = [
            c / known[k] for own in claims.values() for k, c in own.items() if known.get(k)
        ]
        usual = _median(shares)
        for place, own in claims.items():
            for client, claim in own.items():
                expected = usual * known.get(client, 0.0)
                if expected > 0:
                    times = max(
                        claim / expected, expected / claim if claim > 0 else math.inf
                    )
                    yield client, place.server_round, float(times > _USUAL)


def _claim(row: Mapping[str, Any]) -> float:
    claimed = row.get("claimed_examples")
    return float(row.get("num_examples") or 0.0) if claimed is None else float(claimed)


def _far_numbers(rows: Mapping[Place, Rows]) -> Iterator[tuple[str, Client, int, float]]:
    """Yield how odd lengths and reported numbers are: ground, client, round, 0 to 1."""
    distances: dict[tuple[str, str], dict[int, dict[Client, float]]] = {}
    small: dict[tuple[str, str], float] = {}
    for place in sorted(rows):
        around = _around(place, rows)
        for name in _columns(rows[place]):
            if name != LENGTH and len(rows[place]) < _FEWEST:
                # Another round's model gives other losses.
                continue
            kind = place.phase, name
            values = [value for own in around for value in _values(own, name).values()]
            median = _median(values)
            if name != LENGTH:
                small.setdefault(kind, _SMALL * median)
            add = small.get(kind, 0.0)
            if median + add <= 0:
                continue
            distances.setdefault(kind, {})[place.server_round] = {
                k: math.log(max((value + add) / (median + add), 1e-300))
                for k, value in _values(rows[place], name).items()
            }
    for (phase, name), by_round in distances.items():
        whole = _median(abs(d) for own in by_round.values() for d in own.values())
        for server_round, own in by_round.items():
            few = len(own) < _FEWEST
            spread = whole if few else max(whole, _median(map(abs, own.values())))
            allowed = _work(rows[Place(server_round, phase)]) if name == LENGTH else {}
            for client, distance in own.items():
                free = math.copysign(1.0, distance) * allowed.get(client, 0.0)
                beyond = max(abs(distance) - max(free, 0.0), 0.0)
                if few and distance < 0:
                    # From round to round honest updates shorten too.
                    continue
                length = "long" if distance > 0 else "short"
                ground = length if name == LENGTH else name
                yield ground, client, server_round, odd_by(beyond, spread)


def _around(place: Place, rows: Mapping[Place, Rows]) -> list[Rows]:
    """Return a round's rows, and where they are few those of the rounds next to it."""
    if len(rows[place]) >= _FEWEST:
        return [rows[place]]
    phase = [p for p in rows if p.phase == place.phase]
    nearest = sorted(phase, key=lambda p: (abs(p.server_round - place.server_round), p))
    taken: list[Rows] = []
    for near in nearest:
        taken.append(rows[near])
        if sum(map(len, taken)) >= 2 * _FEWEST - 1:
            break
    return taken


def _claims(rows: Rows) -> list[str]:
    """Return the names of claims in a round's rows: losses, steps and their size.

    Scores are none: those of few rows differ much.
    """
    names = {name for row in rows.values() for name in row} - RESERVED
    return sorted(name for name in names if "loss" in name or name in (STEPS, RATE))


def _columns(rows: Rows) -> list[str]:
    """Return the length and the claims that are >= 0 in most of a round's rows."""
    return [
        name
        for name in (LENGTH, *_claims(rows))
        if 2 * sum(value >= 0 for value in _values(rows, name).values()) > len(rows)
    ]


def _values(rows: Rows, name: str) -> dict[Client, float]:
    column = "update_norm" if name == LENGTH else name
    return {
        k: float(row[column])
        for k, row in rows.items()
        if isinstance(row.get(column), int | float)
    }


def _work(rows: Rows) -> dict[Client, float]:
    """Return the logarithm of each client's work over the median: its update may grow so.

    Work is steps, where all say them, and else rows.
    """
    steps = _values(rows, STEPS)
    work = steps if len(steps) == len(rows) else _values(rows, "num_examples")
    median = _median(work.values())
    if median <= 0:
        return {}
    return {k: math.log(min(max(w / median, 1 / _WIDE), _WIDE)) for k, w in work.items()}


def _median(values: Iterable[float]) -> float:
    numbers = list(values)
    return float(np.median(numbers)) if numbers else 0.0


def write_suspects(run: Path, output: Path, *, overwrite: bool) -> None:
    """Write which clients' updates were far from the others', and whose were refused."""
    clients = suspects(load_run(run))
    files = Output.claim(output, "suspects", overwrite=overwrite)
    files.write(Table(COLUMNS, [suspect.cells() for suspect in clients], NOTE))


def _told(run: Run) -> dict[Place, dict[str, set[Client]]]:
    """Return by phase whose replies were refused, bounded, repeated, or did not come.

    Clients are named as their rows name them: by the site, where they have one.
    """
    told: dict[Place, dict[str, set[Client]]] = defaultdict(lambda: defaultdict(set))
    for event in run.events():
        ground, client = _ground(event), event.get("client")
        if ground and client is not None and event.get("phase"):
            place = Place(event["round"], event["phase"])
            told[place][ground].add(run.named(client))
    return told


def _ground(event: Mapping[str, Any]) -> str:
    """Return what an event says of its client; empty of nothing."""
    kind, cause = event.get("kind", ""), event.get("cause")
    if kind == LEFT_OUT:
        # What is not finite may be the client's honest state, a score of one class.
        return "impossible" if cause == Kind.WRONG_METRICS else "left out"
    if kind == "rejected-reply" and cause in ABSENT:
        return "absent"
    if kind == "rejected-reply" and cause == Kind.DUPLICATE:
        return "repeated"
    return {"rejected-reply": "refused", "bounded-reply": "bounded"}.get(kind, "")


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(float(row[name]) for row in rows if row.get(name) is not None)


def _median_and_largest(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (float(np.median(values)), max(values)) if values else (None, None)
