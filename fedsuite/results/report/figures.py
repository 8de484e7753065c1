"""Figures of the report, as Plotly's objects in plain dictionaries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.tasks import Score
from fedsuite.data.shift_report import ClientShift
from fedsuite.results.groups import Group
from fedsuite.results.panels import (
    PANELS,
    POOLED,
    Curve,
    Panel,
    by_seed,
    client_curves,
    left_out_words,
    pooled_curve,
    score_curves,
    score_panels,
)
from fedsuite.results.plots import PALETTE, band_edges
from fedsuite.results.report.thinning import (
    MOST_POINTS,
    drawn_positions,
    most_points,
    thinning_note,
)
from fedsuite.results.report.values import label, rounded

Data = list[dict[str, Any]]

INK = "ink"
"""Colour of text, which the page replaces: it depends on light or dark."""

CLASS_COLOURS = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"),
)
"""Paul Tol's ten muted colours for the colour-blind."""

DASHES = ("solid", "dash", "dot", "dashdot")
FEW = 10
"""Most rounds that each have a number at the axis, which would have fractions else."""

MOST_CLIENTS = 400
"""Most columns of clients in a figure."""

PARTS = {"train": "Training rows", "test": "Test rows"}
"""Title of the figure of each part of the data."""

_VALUE = "%{y:.4~g}"


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Parameters
    ----------
    section
        Section of the page.
    title, note
        Heading and explanation.
    data
        Plotly's traces.
    x, y
        Labels of the axes.
    layout
        Further parts of Plotly's layout.
    curves
        Whether readers may smooth it and make its axis logarithmic.
    height
        Height in pixels; 0 is the usual one.
    score
        Column of the score that it is of; empty for a figure that is of none.
    """

    section: str
    title: str
    data: Data
    x: str
    y: str
    note: str = ""
    layout: Mapping[str, Any] = field(default_factory=dict)
    curves: bool = False
    height: int = 0
    score: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return what the page's script draws."""
        x: dict[str, Any] = {"title": {"text": self.x}}
        if self.x == "round" and max(_last(trace) for trace in self.data) <= FEW:
            x["dtick"] = 1
        layout = dict(self.layout)
        for name, own in (("xaxis", x), ("yaxis", {"title": {"text": self.y}})):
            layout[name] = own | layout.get(name, {})
        parts: dict[str, Any] = {"data": self.data, "layout": layout}
        return (
            parts
            | {"curves": self.curves}
            | ({"height": self.height} if self.height else {})
        )


def _last(trace: Mapping[str, Any]) -> float:
    return float(max(trace["x"], default=0))


ONCE = "Mean over clients, each counting once."
BY_ROWS = "Mean over rows: clients count by how many they have."


def score_figures(groups: Sequence[Group], score: Score) -> list[Figure]:
    """Return a score against rounds, one curve per experiment."""
    curves = [[score_curves(run, score) for run in group.runs] for group in groups]
    left_out = left_out_words([run for group in groups for run in group.runs], score)
    notes = [ONCE, *([f"{left_out}."] if left_out else [])]
    return _figures(groups, score_panels(score), curves, notes)


def curve_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return losses, and numbers of methods, against rounds, one curve per experiment."""
    once = [[client_curves(run, PANELS) for run in group.runs] for group in groups]
    pooled = [
        [
            {panel.key: pooled_curve(run, panel.key) for panel in POOLED}
            for run in group.runs
        ]
        for group in groups
    ]
    return [
        *_figures(groups, PANELS, once, [ONCE]),
        *_figures(groups, POOLED, pooled, [BY_ROWS]),
    ]


def _figures(
    groups: Sequence[Group],
    panels: Sequence[Panel],
    curves: Sequence[Sequence[Mapping[str, Curve]]],
    notes: Sequence[str],
) -> list[Figure]:
    """Return the panels that have data as figures; curves are by experiment and seed."""
    figures = []
    most = most_points(len(groups))
    for panel in panels:
        data: Data = []
        longest = 0
        for index, (group, group_curves) in enumerate(zip(groups, curves, strict=True)):
            count = _add_curve(data, group, group_curves, panel, index, most)
            longest = max(longest, count)
        if data:
            parts = notes[0], _spread(groups), thinning_note(longest, most), *notes[1:]
            note = " ".join(filter(None, parts))
            title = panel.title.partition(";")[0]
            figures.append(
                Figure("curves", title, data, "round", panel.label, note, curves=True)
            )
    return figures


def _spread(groups: Sequence[Group]) -> str:
    if max((len(group.runs) for group in groups), default=0) < 2:
        return ""
    return (
        "Line and band: mean and sample standard deviation over seeds, of the rounds that "
        "all seeds have."
    )


def _add_curve(
    data: Data, group: Group, curves: Sequence[Any], panel: Panel, index: int, most: int
) -> int:
    """Add an experiment's traces, and return the number of its rounds."""
    rounds, values = by_seed(curves, panel.key)
    if not rounds:
        return 0
    name = label(group.label)
    mean, below, above = band_edges(values, panel)
    data.append(line(name, rounds, mean, index, most))
    if len(values) > 1:
        std = panel.scale * values.std(axis=0, ddof=1)
        data.extend(band(name, rounds, below, above, index, most))
        low, high = values.min(axis=0), values.max(axis=0)
        places = drawn_positions(mean, most)
        data[-3]["customdata"] = [
            [rounded(std[i]), rounded(panel.scale * low[i]), rounded(panel.scale * high[i])]
            for i in places
        ]
        data[-3]["hovertemplate"] = (
            f"{_VALUE} ± %{{customdata[0]:.3~g}} (%{{customdata[1]:.4~g}} to "
            "%{customdata[2]:.4~g})"
        )
    if panel.beside:
        beside, others = by_seed(curves, panel.beside)
        if beside:
            trace = line(
                f"{name}: {panel.beside.replace('_', ' ')}",
                beside,
                panel.scale * others.mean(axis=0),
                index,
                most,
            )
            trace["line"] = {**trace["line"], "dash": "dot", "width": 1.3}
            data.append(trace)
    return len(rounds)


def colour(index: int) -> str:
    """Return the colour of an experiment."""
    hex_code = PALETTE[index % len(PALETTE)]
    return INK if hex_code == "#000000" else hex_code


def line(
    name: str,
    rounds: Sequence[int],
    values: Sequence[float] | Any,
    index: int,
    most: int = MOST_POINTS,
) -> dict[str, Any]:
    """Return a curve, thinned where it is long."""
    places = drawn_positions(values, most)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(rounds) <= 30 else "lines",
        "name": name,
        "x": [int(rounds[i]) for i in places],
        "y": [rounded(values[i]) for i in places],
        "line": {
            "color": colour(index),
            "dash": DASHES[index // len(PALETTE) % len(DASHES)],
            "width": 2,
        },
        "hovertemplate": _VALUE,
    }


def band(
    name: str,
    rounds: Sequence[int],
    low: Any,
    high: Any,
    index: int,
    most: int = MOST_POINTS,
) -> Data:
    """Return the two edges of a band; the lower one has the upper one's points."""
    places = sorted({*drawn_positions(low, most), *drawn_positions(high, most)})
    shared = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [int(rounds[i]) for i in places],
        "line": {"width": 0, "color": colour(index)},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    lower = {**shared, "y": [rounded(low[i]) for i in places]}
    upper = {**shared, "y": [rounded(high[i]) for i in places], "fill": "tonexty"}
    return [lower, {**upper, "opacity": 0.2, "fillcolor": _faint(colour(index))}]


def _faint(hex_code: str) -> str:
    if hex_code == INK:
        return "rgba(128,128,128,0.2)"
    red, green, blue = (int(hex_code[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"


def holding_figures(
    counts: Mapping[str, NDArray[np.int64] | None], shifts: Sequence[ClientShift] = ()
) -> list[Figure]:
    """Return the figures of the rows that each client holds.

    Parameters
    ----------
    counts
        Rows of shape (clients, classes) of each part in :data:`PARTS`; None where unknown.
    shifts
        Each client's measured covariate shift; empty without such a shift.
    """
    bars = {"barmode": "stack", "bargap": 0.05, "hovermode": "closest"}
    figures = []
    for part, title in PARTS.items():
        held = counts[part]
        if held is None or held.ndim != 2 or not held.size:
            continue
        names = [f"class {index}" for index in range(held.shape[1])]
        colours = [_class_colour(index, len(names)) for index in range(len(names))]
        data, note = _client_bars(held.T, names, colours)
        figures.append(Figure("data", title, data, "client", "rows", note, bars))
    if shifts:
        what = "squared Mahalanobis shift of the training rows"
        values = np.array([[shift.squared_shift for shift in shifts]])
        data, note = _client_bars(values, [what], PALETTE[:1])
        figures.append(Figure("data", "Covariate shift", data, "client", what, note, bars))
    return figures


def _client_bars(
    heights: NDArray[Any], names: Sequence[str], colours: Sequence[str]
) -> tuple[Data, str]:
    """Return bars of heights, shape (layers, clients), and a note if clients share them."""
    firsts, means, each = shared_columns(heights, MOST_CLIENTS)
    data = [
        {
            "type": "bar",
            "name": name,
            "x": firsts,
            "y": [rounded(value) for value in layer],
            "marker": {"color": shade, "line": {"width": 0}},
            "hovertemplate": f"client %{{x}}, {name}: {_VALUE}<extra></extra>",
        }
        for name, layer, shade in zip(names, means, colours, strict=True)
    ]
    note = "" if each == 1 else f"A column is the mean of {each} neighbouring clients."
    return data, note


def shared_columns(
    heights: NDArray[Any], most: int
) -> tuple[list[int], NDArray[np.float64], int]:
    """Return heights of clients, shape (layers, clients), as at most so many columns.

    Returns
    -------
    tuple
        The first client of each column, the columns' heights, which are means over their
        clients, and the number of clients per column; the last one may have fewer.
    """
    num_clients = heights.shape[1]
    each = -(-num_clients // most)
    firsts = np.arange(0, num_clients, each)
    sums = np.add.reduceat(heights.astype(np.float64), firsts, axis=1)
    means = sums / np.diff(np.append(firsts, num_clients))
    return firsts.tolist(), means, each


def _class_colour(index: int, num_classes: int) -> str:
    if num_classes <= len(CLASS_COLOURS):
        return CLASS_COLOURS[index]
    return f"hsl({round(360 * index / num_classes)},60%,{45 + 15 * (index % 2)}%)"
