"""What the commands of papers' figures share."""

from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the draws.")]


def whole_rounds(axes: Axes) -> None:
    """Mark whole rounds only."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def legend_below(figure: Figure, axes: Axes, columns: int = 1) -> None:
    """Add the legend of one panel below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
