"""Clients that stand out over a run's rounds, the oddest first.

Reads the columns of ``clients.jsonl`` that :mod:`fedsuite.rounds.update_norms` writes, what
clients weighed and said of their losses, and the events of replies that were refused,
bounded, or never came.

A client is odd in a round by the strongest of these grounds, each from 0 to 1:

- its reply was refused or bounded: 1;
- nothing came: 0.5;
- its update was long for its number of examples, or next to nothing; it weighed more
  than the others for its number of examples, or more than half of the average; it claimed
  a loss above theirs. Each is a number of medians of the round, :func:`far` from 1.

Where half of those asked fail, or do not answer, that is no ground against any: the model
or the server did it to them. A client is as odd as its rounds are on average, so that what
persists counts. Directions of updates are no ground: honest clients with other data differ
in them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedsuite.core.errors import RunError
from fedsuite.results.analysis_files import Output, Table, panels
from fedsuite.results.plots import dress, escape_dollars
from fedsuite.results.reader import Client, Run, load_run
from fedsuite.rounds.kinds import ABSENT

NOTE = (
    "Far from the others is not dishonest: a hospital with other patients looks the same. "
    "Look at a client's data before you exclude it. Lengths, weights and losses are in "
    "medians of the round. A lie of the usual length and loss is not seen here: the key "
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

STANDS_OUT = 0.1
"""Oddness, the mean over rounds, below which a client is like the others."""

_USUAL, _FAR = 1.5, 10.0
"""Medians up to which a number is usual, and from which nothing could be odder."""

_WIDE = 5.0
"""Weights for a number of examples differ so many times more; so do short updates."""

_ENOUGH = 4
"""With fewer clients one may own more than half of the average."""

_SMALL_LOSS = 0.25
"""Share of the first round's median loss that is added to losses: near 0 all are odd."""

_LOSSES = ("loss_before", "loss")


def far(medians: float) -> float:
    """Return how odd a number of medians is: 0 to 1.5, 1 from 10 on, by its logarithm."""
    if medians <= _USUAL:
        return 0.0
    return min(math.log(medians / _USUAL) / math.log(_FAR / _USUAL), 1.0)


@dataclass
class Suspect:
    """What is known of one client; None where the run does not say.

    Parameters
    ----------
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


def suspects(run: Run) -> list[Suspect]:
    """Return a run's clients, the oddest first.

    Raises
    ------
    RunError
        If the run has no lengths of updates.
    """
    rows: dict[int, dict[Client, Mapping[str, Any]]] = defaultdict(dict)
    of_client: dict[Client, list[Mapping[str, Any]]] = defaultdict(list)
    for row in run.clients():
        if row["phase"] == "train":
            rows[row["round"]][row["client"]] = row
            of_client[row["client"]].append(row)
    if not any("update_norm" in row for own in of_client.values() for row in own):
        raise RunError(
            f"{run.path}: no client's row has update_norm: its clients sent no models"
        )
    told = dict(_told(run))
    clients = {client: Suspect(client) for client in of_client}
    for by_ground in told.values():
        for client in (k for named in by_ground.values() for k in named):
            clients.setdefault(client, Suspect(client))
    for client, own in of_client.items():
        one = clients[client]
        one.lengths, one.weights = _numbers(own, "norm_ratio"), _numbers(own, "weight")
        one.examples = max(_numbers(own, "num_examples"), default=0.0)
        one.claimed = max(_numbers(own, "claimed_examples"), default=None)
    small = 0.0
    for server_round in sorted({*rows, *told}):
        replies, named = rows.get(server_round, {}), told.get(server_round, {})
        missing = {k for g in ("refused", "absent") for k in named.get(g, ())} - {*replies}
        asked = {*replies, *missing}
        for client in asked:
            clients[client].rounds.add(server_round)
        for ground, whom in named.items():
            alone = whom if ground == "bounded" else whom & missing
            if ground == "bounded" or 2 * len(alone) < len(asked):
                for client in alone & asked:
                    odd = 0.5 if ground == "absent" else 1.0
                    clients[client].add(ground, server_round, odd)
        small = small or _SMALL_LOSS * _median(_losses(replies).values())
        for ground, client, odd in _measured(replies, small):
            clients[client].add(ground, server_round, odd)
    return sorted(clients.values(), key=lambda one: (-one.odd, str(one.client)))


def _measured(
    rows: Mapping[Client, Mapping[str, Any]], small: float
) -> Iterator[tuple[str, Client, float]]:
    """Yield how odd the numbers of a round's replies are: ground, client, 0 to 1."""
    sizes = {k: row.get("num_examples") or 0.0 for k, row in rows.items()}
    usual = _median(sizes.values())
    for client, row in rows.items():
        ratio = row.get("norm_ratio")
        if ratio is None:
            continue
        # Epochs make lengths grow with the rows, a number of steps does not.
        times = min(max(sizes[client] / usual, 1 / _WIDE), _WIDE) if usual > 0 else 1.0
        yield "long", client, far(ratio / max(times, 1.0))
        least = min(times, 1.0) / _WIDE
        yield "short", client, far(least / ratio if ratio > 0 else math.inf)
    weights = {k: row["weight"] for k, row in rows.items() if row.get("weight") is not None}
    per_row = {k: w / sizes[k] for k, w in weights.items() if sizes[k] > 0}
    median = _median(per_row.values())
    for client, weight in weights.items():
        # A large site is no liar, but no site is to own more than half.
        owned = far(_USUAL * 2 * weight) if len(weights) >= _ENOUGH else 0.0
        times = per_row.get(client, 0.0) / median if median > 0 else 0.0
        yield "heavy", client, max(owned, far(times / _WIDE))
    losses = _losses(rows)
    middle = _median(losses.values()) + small
    for client, loss in losses.items():
        yield "loss", client, far((loss + small) / middle) if middle > 0 else 0.0


def _losses(rows: Mapping[Client, Mapping[str, Any]]) -> dict[Client, float]:
    """Return the clients' losses, by the first of the usual names that they have."""
    for name in _LOSSES:
        if losses := {k: r[name] for k, r in rows.items() if r.get(name) is not None}:
            return losses
    return {}


def _median(values: Iterable[float]) -> float:
    numbers = list(values)
    return float(np.median(numbers)) if numbers else 0.0


def write_suspects(run: Path, output: Path, *, overwrite: bool) -> None:
    """Write which clients' updates were far from the others', and whose were refused."""
    clients = suspects(load_run(run))
    files = Output.claim(output, "suspects", overwrite=overwrite)
    table = Table(COLUMNS, [suspect.cells() for suspect in clients], NOTE)
    files.write(table, suspects_figure(clients))


def suspects_figure(clients: Sequence[Suspect]) -> Figure:
    """Draw the lengths of each client's updates, the oddest client first."""
    figure, (axes,) = panels(1, 1, 5.0, 3.8)
    for place, suspect in enumerate(clients):
        axes.plot([place] * len(suspect.lengths), suspect.lengths, "k.", markersize=4)
    names = [escape_dollars(str(suspect.client)) for suspect in clients]
    axes.set_xticks(range(len(clients)), names)
    axes.axhline(1, color="0.4", linewidth=0.8)
    dress(axes, "Clients' updates", "client", "length, medians of the round")
    return figure


def _told(run: Run) -> Iterator[tuple[int, dict[str, set[Client]]]]:
    """Yield rounds with whose replies to training were refused, bounded, or did not come.

    Clients are named as their rows name them: by the site, where they have one.
    """
    text = str(run.experiment.get("sites", ""))
    sites = [name.strip() for name in text.split(",")] if text else []
    grounds = {"rejected-reply": "refused", "bounded-reply": "bounded"}
    told: dict[int, dict[str, set[Client]]] = defaultdict(lambda: defaultdict(set))
    for event in run.events():
        ground, client = grounds.get(event.get("kind", "")), event.get("client")
        if ground is None or client is None or event.get("phase") != "train":
            continue
        if event.get("cause") in ABSENT:
            ground = "absent"
        told[event["round"]][ground].add(_named(client, sites))
    yield from told.items()


def _named(client: Any, sites: Sequence[str]) -> Client:
    """Return a client as its rows call it: by its site's name, if it has one."""
    if isinstance(client, int) and 0 <= client < len(sites):
        return sites[client]
    name: Client = client
    return name


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(float(row[name]) for row in rows if row.get(name) is not None)


def _median_and_largest(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (float(np.median(values)), max(values)) if values else (None, None)
