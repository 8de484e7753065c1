"""Figures of runs, drawn from the runs' folders.

Figures are made of matplotlib's objects, without pyplot, whose global state would reach
into the caller's session. A ``*_figure`` function returns a figure.
"""

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.core.files import atomic_write
from fedsuite.core.metrics import fairness_report
from fedsuite.data.shift_report import ClientShift
from fedsuite.results.client_bars import draw_columns
from fedsuite.results.groups import Group, group_runs
from fedsuite.results.likeness import UNLIKE, share_partitions
from fedsuite.results.panels import (
    BY_ROWS,
    ONCE,
    PANELS,
    POOLED,
    Curve,
    Panel,
    client_curves,
    left_out_words,
    pooled_curve,
)
from fedsuite.results.reader import Client, Run

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours for the colour-blind, without yellow, too pale for lines."""

CLASS_COLOURS = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"),
)
"""Paul Tol's ten muted colours for the colour-blind."""

LINE_STYLES = ("-", "--", ":", "-.")
DPI = 150
FULL = 102
"""Top of accuracy axes, which keeps 100 % off the frame."""

Curves = tuple[list[int], NDArray[np.float64]]
"""Rounds, and values of shape (seeds, rounds)."""

SPREAD = (0, 10, 50, 90, 100)
"""Percentiles of the clients' accuracies to draw against rounds."""

NO_CURVES = "no curves to draw: the runs hold no losses and no accuracies"

SHIFT_PANELS = (
    ("squared_shift", "Squared Mahalanobis shift", "of the training rows"),
    ("effective_size", "Effective sample size", "rows"),
    ("distinct", "Different rows", "rows"),
    ("label_drift", "Label drift", "total variation"),
)


def figures_of(run: Run) -> dict[str, Callable[[], Figure]]:
    """Return what draws each figure for which a run has data, by file name."""
    figures = _curves([run], "curves.png")
    if any(run.client_rounds("evaluate", "accuracy")):
        figures["client_accuracy.png"] = partial(client_accuracy_figure, run)
    for part in ("train", "test"):
        counts = run.class_counts(part)
        if counts is not None:
            figures[f"partition_{part}.png"] = partial(partition_figure, counts, part)
    if run.shifts():
        figures["partition_shift.png"] = partial(shift_figure, run.shifts())
    return figures


def plot_curves(runs: Sequence[Run], path: Path) -> None:
    """Write :func:`curves_figure` to a PNG file, and :func:`pooled_figure` beside it."""
    figures = _curves(runs, path.name)
    if not figures:
        raise RunError(NO_CURVES)
    for name, make in figures.items():
        save_figure(make(), path.with_name(name))


def curves_figure(runs: Sequence[Run]) -> Figure:
    """Draw losses and accuracies against rounds, one line per experiment.

    Each point is a mean over clients in which each client counts once. A line is the mean
    over the experiment's seeds, in a band of one sample standard deviation, of the rounds
    that all seeds have. A panel without data is left out.

    Raises
    ------
    RunError
        If no run has data to draw.
    """
    return _figure(runs, PANELS, _once(runs), ONCE)


def pooled_figure(runs: Sequence[Run]) -> Figure:
    """Draw means over rows against rounds; see :func:`curves_figure`."""
    return _figure(runs, POOLED, _by_rows(runs), BY_ROWS)


def _once(runs: Sequence[Run]) -> list[dict[str, Curve]]:
    return [client_curves(run, PANELS) for run in runs]


def _by_rows(runs: Sequence[Run]) -> list[dict[str, Curve]]:
    return [{panel.key: pooled_curve(run, panel.key) for panel in POOLED} for run in runs]


def _curves(runs: Sequence[Run], name: str) -> dict[str, Callable[[], Figure]]:
    """Return what draws the figures of curves for which runs have data, by file name."""
    stem, dot, suffix = name.rpartition(".")
    kinds = (
        (name, PANELS, _once(runs), ONCE),
        (f"{stem}_by_rows{dot}{suffix}", POOLED, _by_rows(runs), BY_ROWS),
    )
    return {
        path: partial(_figure, runs, panels, curves, weights)
        for path, panels, curves, weights in kinds
        if any(any(found.values()) for found in curves)
    }


def _figure(
    runs: Sequence[Run],
    choice: Sequence[Panel],
    curves: Sequence[Mapping[str, Curve]],
    weights: str,
) -> Figure:
    """Draw the panels for which the runs have data."""
    panels = [panel for panel in choice if any(found[panel.key] for found in curves)]
    if not panels:
        raise RunError(NO_CURVES)
    groups = group_runs(runs)
    of_run = {id(run): found for run, found in zip(runs, curves, strict=True)}
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.1 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for index, group in enumerate(groups):
            found = [of_run[id(run)] for run in group.runs]
            _draw_curve(axes, by_seed(found, panel.key), panel.scale, index)
            if panel.beside:
                _draw_beside(axes, by_seed(found, panel.beside), panel.scale, index)
        dress(axes, panel.title, "round", panel.label)
        _round_ticks(axes)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    title = weights[0].upper() + weights[1:]
    if left_out := left_out_words(runs):
        title += f"\n{left_out}"
    if len(groups) == 1:
        figure.suptitle(escape_dollars(f"{_title(groups[0])}\n{title}"))
    else:
        figure.suptitle(title if share_partitions(groups) else f"{title}\n{UNLIKE}")
        # All groups, even those that a panel lacks: the legend is the whole figure's.
        handles = [
            grid.flat[0].plot([], [], **line_style(i))[0] for i in range(len(groups))
        ]
        labels = [
            escape_dollars(textwrap.fill(_with_seeds(group), 55 * columns))
            for group in groups
        ]
        widest = max(len(line) for label in labels for line in label.splitlines())
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=max(1, min(len(groups), int(48 * columns / (widest + 6)))),
            frameon=False,
        )
    return figure


def client_accuracy_figure(run: Run) -> Figure:
    """Draw clients' last accuracies, and their spread over rounds; RunError for none."""
    last, accuracies, spreads = 0, dict[Client, float](), dict[int, NDArray[np.float64]]()
    for server_round, found in run.client_rounds("evaluate", "accuracy"):
        last, accuracies = server_round, found
        spreads[last] = 100 * np.percentile(list(found.values()), SPREAD)
    if not spreads:
        raise RunError(f"{run.path}: no accuracies per client to draw")
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    title = f"Each client after round {last}"
    for scores in run.scores():
        if scores.short:
            title += f"; {scores.short} at round {scores.server_round}"
    dress(left, title, "client, sorted by accuracy", "accuracy (%)")
    _draw_sorted_clients(left, accuracies)
    dress(right, "Spread over clients", "round", "accuracy (%)")
    _draw_spread(right, spreads)
    group = Group(str(run.experiment.get("method", "")), (run,))
    figure.suptitle(escape_dollars(_title(group)))
    return figure


def partition_figure(class_counts: NDArray[np.int64], part: str = "train") -> Figure:
    """Draw samples per client and class, shape (clients, classes), of a part."""
    num_clients, num_classes = class_counts.shape
    few = num_clients <= 30
    figure = Figure(figsize=(7.5 if few else 11.0, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = _class_colours(num_classes)
    labels = [str(label) for label in range(num_classes)]
    columns = draw_columns(axes, class_counts.T, colours, labels)
    dress(
        axes,
        f"Who holds what: {part} samples of {num_clients} clients, {num_classes} classes",
        columns.label("client"),
        "samples",
    )
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.6, num_clients - 0.4)
    axes.set_ylim(0, 1.05 * max(1, columns.tops.max()))
    if few:
        axes.set_xticks(range(num_clients))
    _class_key(figure, axes, colours)
    return figure


def shift_figure(shifts: Sequence[ClientShift]) -> Figure:
    """Draw each client's measured shift, effective size and label drift."""
    figure = Figure(figsize=(9.6, 6.0), layout="constrained")
    for axes, (name, title, unit) in zip(
        figure.subplots(2, 2).flat, SHIFT_PANELS, strict=True
    ):
        values = np.array([[getattr(shift, name) for shift in shifts]])
        columns = draw_columns(axes, values, PALETTE[:1])
        dress(axes, title, columns.label("client"), unit)
        axes.grid(axis="x", visible=False)
        # Long numbers would touch each other.
        ticks = MaxNLocator(nbins=12 if len(shifts) <= 1000 else 6, integer=True)
        axes.xaxis.set_major_locator(ticks)
    return figure


def _draw_curve(axes: Axes, curves: Curves, scale: float, index: int) -> None:
    rounds, values = curves
    if not len(values):
        return
    mean = scale * values.mean(axis=0)
    axes.plot(rounds, mean, **_marker(rounds), **line_style(index))
    if len(values) > 1:
        std = scale * values.std(axis=0, ddof=1)
        colour = line_style(index)["color"]
        if len(rounds) == 1:
            axes.errorbar(rounds, mean, std, fmt="none", color=colour, capsize=4)
        else:
            axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.2, lw=0)


def _draw_beside(axes: Axes, curves: Curves, scale: float, index: int) -> None:
    rounds, values = curves
    if len(values):
        style = {"color": line_style(index)["color"], "linestyle": ":", "linewidth": 1.2}
        hollow = {**_marker(rounds), "markerfacecolor": "white"} if len(rounds) == 1 else {}
        axes.plot(rounds, scale * values.mean(axis=0), **style, **hollow)


def _round_ticks(axes: Axes) -> None:
    """Mark whole rounds only, even where there is one round."""
    rounds = {int(x) for line in axes.get_lines() for x in np.asarray(line.get_xdata())}
    if len(rounds) == 1:
        axes.set_xticks(list(rounds))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _marker(rounds: Sequence[int]) -> dict[str, Any]:
    """Return the marker of a curve, so that a single point shows without a line."""
    if len(rounds) > 30:
        return {}
    return {"marker": "o", "markersize": 8 if len(rounds) == 1 else 3}


def by_seed(found: Sequence[Mapping[str, Curve]], key: str) -> Curves:
    """Return common rounds and (seeds, rounds) values of the runs with the column."""
    columns = [curves[key] for curves in found if curves[key]]
    if not columns:
        return [], np.empty((0, 0))
    rounds = sorted(set.intersection(*(set(column) for column in columns)))
    return rounds, np.array([[column[r] for r in rounds] for column in columns])


def _draw_sorted_clients(axes: Axes, accuracies: dict[Client, float]) -> None:
    ordered = sorted(accuracies.items(), key=lambda item: (item[1], str(item[0])))
    values = np.array([100 * value for _, value in ordered])
    report = fairness_report(values)
    worst = -(-len(values) // 10)
    few = len(values) <= 20
    parts = (PALETTE[1], 0, worst), (PALETTE[0], worst, len(values))
    for colour, first, end in parts:
        if end > first:
            heights = values[None, first:end]
            width = 0.85 if few else 1.0
            draw_columns(axes, heights, [colour], width=width, first=first)
    axes.axhline(report.mean, color="black", linestyle="--", linewidth=1.2)
    handles = [
        Line2D([], [], color="black", linestyle="--", label=f"mean {report.mean:.1f} %"),
        Patch(color=PALETTE[1], label=f"worst 10 %: {report.worst_10:.1f} %"),
    ]
    _legend_below(axes, handles)
    axes.set_ylim(0, FULL)
    axes.grid(axis="x", visible=False)
    axes.set_xticks([])
    if few:
        names = [escape_dollars(str(client)) for client, _ in ordered]
        crowded = max(len(name) for name in names) > 3
        axes.set_xticks(range(len(names)), names, rotation=90 if crowded else 0)


def _draw_spread(axes: Axes, spreads: dict[int, NDArray[np.float64]]) -> None:
    """Draw the percentiles ``SPREAD`` of each round."""
    rounds = list(spreads)
    low, tenth, median, ninetieth, high = np.transpose(list(spreads.values()))
    # A band over one round would have no width.
    edge = {"edgecolor": "face", "linewidth": 12} if len(rounds) == 1 else {"linewidth": 0}
    for lower, upper, tint, label in (
        (low, high, "#D9E9F4", "all clients"),
        (tenth, ninetieth, "#99C7E2", "middle 80 %"),
    ):
        axes.fill_between(rounds, lower, upper, facecolor=tint, label=label, **edge)
    axes.plot(rounds, median, color=PALETTE[0], **_marker(rounds), label="median")
    axes.set_ylim(0, FULL)
    _round_ticks(axes)
    _legend_below(axes, axes.get_legend_handles_labels()[0])


def _legend_below(axes: Axes, handles: Sequence[Artist]) -> None:
    axes.legend(
        handles=list(handles),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=len(handles),
        frameon=False,
    )


def _class_colours(num_classes: int) -> list[Any]:
    if num_classes <= len(CLASS_COLOURS):
        return list(CLASS_COLOURS[:num_classes])
    return list(colormaps["viridis"](np.linspace(0, 1, num_classes)))


def _class_key(figure: Figure, axes: Axes, colours: Sequence[Any]) -> None:
    """Add the colours' key: a legend for a few classes, a scale for many."""
    if len(colours) <= len(CLASS_COLOURS):
        handles, labels = axes.get_legend_handles_labels()
        # Reversed, so that the legend reads as the bars are stacked.
        figure.legend(
            handles[::-1],
            labels[::-1],
            title="class",
            loc="outside right center",
            frameon=False,
        )
        return
    edges = np.arange(len(colours) + 1) - 0.5
    scale = ScalarMappable(BoundaryNorm(edges, len(colours)), ListedColormap(colours))
    bar = figure.colorbar(scale, ax=axes, label="class", pad=0.02)
    bar.set_ticks(MaxNLocator(nbins=6, integer=True))
    bar.minorticks_off()


def dress(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """Set a panel's title, labels and common look."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def line_style(index: int) -> dict[str, Any]:
    """Return a line's colour and style; each pair comes once before any repeats."""
    style = LINE_STYLES[index // len(PALETTE) % len(LINE_STYLES)]
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": style, "linewidth": 1.6}


def _title(group: Group) -> str:
    experiment = group.runs[0].experiment
    dataset = f" on {experiment['dataset']}" if "dataset" in experiment else ""
    seeds = [str(run.experiment.get("seed")) for run in group.runs]
    if len(seeds) == 1:
        return f"{group.label}{dataset}, seed {seeds[0]}"
    return f"{group.label}{dataset}, mean and spread of {len(seeds)} seeds"


def _with_seeds(group: Group) -> str:
    count = len(group.runs)
    return f"{group.label} ({count} seeds)" if count > 1 else group.label


def escape_dollars(text: str) -> str:
    """Keep matplotlib from reading dollar signs as mathematics."""
    return text.replace("$", r"\$")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a PNG file, whole or not at all."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=DPI)
    atomic_write(path, image.getvalue())
