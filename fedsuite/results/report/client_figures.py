"""Figures of the clients' scores."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsuite.core.tasks import Score
from fedsuite.results.groups import Group
from fedsuite.results.reader import Run
from fedsuite.results.report.clients import ClientRows
from fedsuite.results.report.figures import (
    Data,
    Figure,
    band,
    colour,
    line,
    shared_columns,
)
from fedsuite.results.report.thinning import thinning_note
from fedsuite.results.report.values import label, rounded

NEAR: Mapping[str, Any] = {"hovermode": "closest"}

MOST_BARS = 240
"""Most bars in one figure, so that each is wide enough to be seen."""

_VALUE = "%{y:.4~g}<extra>%{fullData.name}</extra>"


class Served(NamedTuple):
    """A client of a run: its name, and its score as shown."""

    name: str
    score: float


def client_figures(
    groups: Sequence[Group], rows: Mapping[int, ClientRows], score: Score
) -> list[Figure]:
    """Return clients sorted by score.

    Parameters
    ----------
    groups
        The experiments.
    rows
        What the clients of a run say, by the run's identity.
    score
        What is drawn.
    """
    bars: Data = []
    each = 1
    for index, group in enumerate(groups):
        by_run = [_served(run, rows[id(run)], len(group.runs)) for run in group.runs]
        by_run = [served for served in by_run if served]
        if not by_run:
            continue
        trace, shared = _bars(group, by_run, score, index, len(groups))
        each = max(each, shared)
        bars.append(trace)
    if not bars:
        return []
    seeds = max((len(group.runs) for group in groups), default=0)
    notes = ["The last evaluation of each client."]
    if seeds > 1:
        notes.append("A bar is the mean over seeds of the clients of one place.")
    if each > 1:
        notes.append(f"A bar is the mean of up to {each} neighbours.")
    if earlier := sum(rows[id(run)].num_earlier() for g in groups for run in g.runs):
        notes.append(f"That of {earlier:,} is from an earlier round than the others'.")
    order = "from the worst to the best"
    return [
        Figure(
            section="clients",
            title=f"Clients, {order}",
            data=bars,
            x=f"clients, {order}",
            y=score.label,
            note=" ".join(notes),
            layout={**_axis(score), **NEAR},
        )
    ]


def _axis(score: Score) -> dict[str, Any]:
    """Return the axis of a score: all of a bounded one, and a little beyond."""
    low, high = score.bounds
    if not math.isfinite(high - low):
        return {}
    margin = 0.02 * (high - low)
    return {"yaxis": {"range": [low - margin, high + margin]}}


def _served(run: Run, rows: ClientRows, num_runs: int) -> list[Served]:
    """Return a run's clients, the worst served first."""
    seed = f", seed {run.experiment.get('seed')}" if num_runs > 1 else ""
    clients = [
        Served(label(f"{client}{seed}"), score) for client, score in rows.scores().items()
    ]
    return sorted(clients, key=lambda one: (rows.score.gain(one.score), one.name))


def _bars(
    group: Group, by_run: Sequence[Sequence[Served]], score: Score, index: int, groups: int
) -> tuple[dict[str, Any], int]:
    """Return an experiment's bars, and how many clients share one."""
    places = max(map(len, by_run))
    heights = [
        np.mean([run[place].score for run in by_run if place < len(run)])
        for place in range(places)
    ]
    firsts, means, each = shared_columns(
        np.array([heights]), max(MOST_BARS // max(groups, 1), 10)
    )
    trace: dict[str, Any] = {
        "type": "bar",
        "name": label(group.label),
        "marker": {"color": colour(index), "line": {"width": 0}},
        "x": [first + 1 for first in firsts],
        "y": [rounded(float(mean)) for mean in means[0]],
        "hovertemplate": f"place %{{x}}: {_VALUE}",
    }
    if len(by_run) == 1 and each == 1:
        trace["hovertext"] = [f"client {served.name}" for served in by_run[0]]
        trace["hovertemplate"] = f"%{{hovertext}}: {_VALUE}"
    return trace, each


def spread_figure(rows: ClientRows) -> list[Figure]:
    """Return the percentiles of the clients' scores against rounds."""
    if not rows.spreads:
        return []
    rounds = sorted(rows.spreads)
    low, tenth, median, ninetieth, high = np.transpose([rows.spreads[r] for r in rounds])
    data = [
        *band("all clients", rounds, low, high, 0),
        *band("middle 80 %", rounds, tenth, ninetieth, 0),
    ]
    curves = ("highest", high, 0.8), ("median", median, 2), ("lowest", low, 0.8)
    for name, values, width in curves:
        trace = line(name, rounds, values, 0)
        data.append({**trace, "line": {**trace["line"], "width": width}})
    note = f"Bands: all clients, and the middle 80 %. {thinning_note(len(rounds))}".strip()
    title = "Spread over clients"
    axis = _axis(rows.score)
    return [Figure("clients", title, data, "round", rows.score.label, note, axis)]
