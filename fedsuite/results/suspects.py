"""Clients whose updates are far from the others', over a run's rounds.

Reads the columns of ``clients.jsonl`` that :mod:`fedsuite.rounds.update_norms` writes, and
the events of replies that were refused or bounded.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "Look at a client's data before you exclude it. Lengths are in medians of the round. "
    "A lie of the usual length is not seen here: the key aggregator bounds what it does."
)

COLUMNS = (
    "client",
    "rounds",
    "refused %",
    "bounded %",
    "length, median",
    "length, largest",
    "weight, mean",
    "examples, largest",
    "claim cut, largest",
)


@dataclass(frozen=True)
class Suspect:
    """What is known of one client; None where the run does not say."""

    client: Client
    rounds: int
    refused: float
    bounded: float
    lengths: tuple[float, ...]
    weights: tuple[float, ...]
    examples: float
    claimed: float | None

    @property
    def oddness(self) -> tuple[float, float, str]:
        """Sort key: refused and bounded first, then lengths far from 1, then the name."""
        sizes = np.abs(np.log([size for size in self.lengths if size > 0]))
        far = float(np.median(sizes)) if sizes.size else 0.0
        return -self.refused - self.bounded, -far, str(self.client)

    def cells(self) -> tuple[Any, ...]:
        """Return the client's cells of the table."""
        return (
            str(self.client),
            self.rounds,
            100 * self.refused,
            100 * self.bounded,
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
    rows: dict[Client, list[Mapping[str, Any]]] = defaultdict(list)
    for row in run.clients():
        if row["phase"] == "train":
            rows[row["client"]].append(row)
    if not any("update_norm" in row for own in rows.values() for row in own):
        raise RunError(
            f"{run.path}: no client's row has update_norm: its clients sent no models"
        )
    refused, bounded = (
        _rounds_of(run, kind) for kind in ("rejected-reply", "bounded-reply")
    )
    names = run.experiment.get("sites", "")
    sites = [name.strip() for name in str(names).split(",")] if names else []
    clients = []
    for client in {**rows, **dict.fromkeys(_named(k, sites) for k in refused)}:
        own_rows = rows.get(client, [])
        key = sites.index(client) if client in sites else client
        refused_rounds = refused.get(key, set()) - {row["round"] for row in own_rows}
        num_asked = len(own_rows) + len(refused_rounds)
        clients.append(
            Suspect(
                client,
                num_asked,
                len(refused_rounds) / num_asked if num_asked else 0.0,
                len(bounded.get(key, set())) / num_asked if num_asked else 0.0,
                _numbers(own_rows, "norm_ratio"),
                _numbers(own_rows, "weight"),
                max(_numbers(own_rows, "num_examples"), default=0.0),
                max(_numbers(own_rows, "claimed_examples"), default=None),
            )
        )
    return sorted(clients, key=lambda suspect: suspect.oddness)


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


def _rounds_of(run: Run, kind: str) -> dict[Any, set[int]]:
    """Return client to the rounds in which an event of its training is told.

    A client whose reply did not come is no suspect.
    """
    by_client: dict[Any, set[int]] = defaultdict(set)
    for event in run.events():
        phase_of_kind = event.get("kind"), event.get("phase")
        came = event.get("client") is not None and event.get("cause") not in ABSENT
        if phase_of_kind == (kind, "train") and came:
            by_client[event["client"]].add(event["round"])
    return dict(by_client)


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
