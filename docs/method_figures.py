"""Figures of the methods' pages: differences from the baselines with their intervals."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from fedsuite.results.paired import Paired

GREY = "#808080"
"""Reads on light and on dark pages."""


@dataclass(frozen=True)
class Line:
    """A problem's differences from its baseline, in points.

    Parameters
    ----------
    problem, against
        Names of the problem and of the baseline.
    mean, worst
        Differences of the mean accuracy, and of that of the worst 10 % of the clients.
    """

    problem: str
    against: str
    mean: Paired
    worst: Paired


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write one row per problem: a dot and its 95 % interval, for mean and worst 10 %."""
    figure = Figure(figsize=(7, 1.2 + 0.62 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    for place, line in enumerate(lines):
        for shift, paired, colour, label in (
            (-0.13, line.mean, "#1f77b4", "mean accuracy"),
            (0.13, line.worst, "#ff7f0e", "worst 10 %"),
        ):
            axes.errorbar(
                paired.mean,
                place + shift,
                xerr=paired.half_width,
                fmt="o",
                capsize=3,
                color=colour,
                label=label if place == 0 else None,
            )
    axes.axvline(0, color=GREY, linewidth=1)
    names = [textwrap.fill(f"{x.problem}, against {x.against}", 36) for x in lines]
    axes.set_yticks(range(len(lines)), names, fontsize="small")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel("difference from the baseline, points")
    axes.tick_params(colors=GREY, which="both")
    axes.xaxis.label.set_color(GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, labelcolor=GREY)
    figure.savefig(path, transparent=True, metadata={"Date": None})
