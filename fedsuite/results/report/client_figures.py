"""Figures of the clients' accuracies."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsuite.results.groups import Group
from fedsuite.results.report.clients import ClientRows
from fedsuite.results.report.figures import Data, Figure, band, colour, line
from fedsuite.results.report.thinning import drawn_positions, thinning_note
from fedsuite.results.report.values import label, number, rounded

ACCURACY: Mapping[str, Any] = {
    "yaxis": {"title": {"text": "accuracy (%)"}, "range": [-2, 102]}
}
NEAR: Mapping[str, Any] = {"hovermode": "closest"}

MOST_MARKS = 6000
"""Most marks of clients in one figure."""

_VALUE = "%{y:.4~g} %<extra>%{fullData.name}</extra>"


class Served(NamedTuple):
    """A client of a run: its name, accuracy in per cent, and training rows if known."""

    name: str
    accuracy: float
    rows: float | None


def client_figures(
    groups: Sequence[Group], rows: Mapping[int, ClientRows], score: str = "accuracy"
) -> list[Figure]:
    """Return clients sorted by accuracy, and accuracy by rows.

    Parameters
    ----------
    groups
        The experiments.
    rows
        What the clients of a run say, by the run's identity.
    score
        The accuracy that is drawn.
    """
    ranked: Data = []
    sizes: Data = []
    most = max(MOST_MARKS // max(len(groups), 1), 60)
    left_out = False
    for index, group in enumerate(groups):
        served = _served(group, rows)
        if not served:
            continue
        drawn = _evenly(served, most)
        left_out |= len(drawn) < len(served)
        ranked.append(_ranked(group, served, index, most))
        if known := [one for one in drawn if one.rows is not None]:
            sizes.append(_sizes(group, known, index))
    some = "Of many clients some are drawn, evenly from the worst to the best."
    note = some if left_out else ""
    earlier = sum(rows[id(run)].num_earlier() for group in groups for run in group.runs)
    last = f"The last evaluation of each client, of all seeds. {note}".strip()
    if earlier:
        last += f" That of {earlier:,} is from an earlier round than the others'."
    what = "accuracy" if score == "accuracy" else score.replace("_", " ")
    from_zero = {"title": {"text": "training rows"}, "rangemode": "tozero"}
    axis = {"xaxis": {"title": {"text": "clients (%)"}, "range": [-2, 102]}}
    titles = (
        ("Clients, from the worst to the best", "clients (%)", f"{what} (%)"),
        (
            f"{what[0].upper()}{what[1:]} against training rows",
            "training rows",
            f"{what} (%)",
        ),
    )
    parts: tuple[tuple[Data, str, Mapping[str, Any]], ...] = (
        (ranked, last, {**ACCURACY, **axis, **NEAR}),
        (sizes, note, {**ACCURACY, **NEAR, "xaxis": from_zero}),
    )
    return [
        Figure("clients", title, data, x, y, text, layout)
        for (title, x, y), (data, text, layout) in zip(titles, parts, strict=True)
        if data
    ]


def _served(group: Group, rows: Mapping[int, ClientRows]) -> list[Served]:
    """Return the clients of all runs of an experiment, the worst served first."""
    clients = []
    for run in group.runs:
        seed = f", seed {run.experiment.get('seed')}" if len(group.runs) > 1 else ""
        trained = rows[id(run)].last.get("train", {})
        for client, accuracy in rows[id(run)].accuracies().items():
            size = number(trained.get(client, {}).get("num_examples"))
            clients.append(Served(label(f"{client}{seed}"), 100 * accuracy, size))
    return sorted(clients, key=lambda one: (one.accuracy, one.name))


def _evenly(served: Sequence[Served], most: int) -> list[Served]:
    """Return at most so many of sorted clients, the first and the last among them."""
    if len(served) <= most:
        return list(served)
    return [served[i] for i in np.linspace(0, len(served) - 1, most).astype(int)]


def _ranked(
    group: Group, served: Sequence[Served], index: int, most: int
) -> dict[str, Any]:
    places = drawn_positions([one.accuracy for one in served], most)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label(group.label),
        "marker": {"size": 5, "color": colour(index)},
        "line": {"color": colour(index), "shape": "vh", "width": 1.5},
        "x": [rounded(100 * (i + 1) / len(served)) for i in places],
        "y": [rounded(served[i].accuracy) for i in places],
        "text": [served[i].name for i in places],
        "hovertemplate": f"client %{{text}}: {_VALUE}",
    }


def _sizes(group: Group, served: Sequence[Served], index: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(group.label),
        "x": [one.rows for one in served],
        "y": [rounded(one.accuracy) for one in served],
        "text": [one.name for one in served],
        "marker": {"color": colour(index), "size": 7, "opacity": 0.7},
        "hovertemplate": f"client %{{text}}: %{{x}} rows, {_VALUE}",
    }


def spread_figure(rows: ClientRows) -> list[Figure]:
    """Return the percentiles of the clients' accuracies against rounds."""
    if not rows.spreads:
        return []
    rounds = sorted(rows.spreads)
    low, tenth, median, ninetieth, high = np.transpose([rows.spreads[r] for r in rounds])
    data = [
        *band("all clients", rounds, low, high, 0),
        *band("middle 80 %", rounds, tenth, ninetieth, 0),
    ]
    curves = ("best", high, 0.8), ("median", median, 2), ("worst", low, 0.8)
    for name, values, width in curves:
        trace = line(name, rounds, values, 0)
        data.append({**trace, "line": {**trace["line"], "width": width}})
    note = f"Bands: all clients, and the middle 80 %. {thinning_note(len(rounds))}".strip()
    title = "Spread over clients"
    return [Figure("clients", title, data, "round", "accuracy (%)", note, ACCURACY)]
