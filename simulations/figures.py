"""What the commands of papers' figures share."""

import io
from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsuite.core.errors import one_line
from fedsuite.core.files import atomic_write
from fedsuite.core.output import print_line
from fedsuite.results.analysis_files import Output, Table

DPI = 150

SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the draws.")]


def whole_rounds(axes: Axes) -> None:
    """Mark whole rounds only."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def legend_below(figure: Figure, axes: Axes, columns: int = 1) -> None:
    """Add the legend of one panel below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


class DrawnOutput(Output):
    """The files of a paper's figure: its table, and the figure as PNG."""

    endings = (".csv", ".md", ".png")

    def draw(self, table: Table, figure: Figure, *, printed: Table | None = None) -> None:
        """Write the files and print the table, or a shorter table in its place."""
        image, path = io.BytesIO(), self.paths[2]
        figure.savefig(image, format="png", dpi=DPI)
        atomic_write(path, image.getvalue())
        self.write(table, printed=printed)
        print_line(f"figure: {path}")


def panels(
    count: int, columns: int, width: float, height: float, extra: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in lines, and the panels.

    Parameters
    ----------
    count, columns
        Number of panels, and of panels per line.
    width, height
        Size of one panel, inches.
    extra
        Height below all panels, inches.
    """
    lines = -(-count // columns)
    size = (width * columns, height * lines + extra)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in axes[count:]:
        empty.remove()
    return figure, axes[:count]


def escape_dollars(text: str) -> str:
    """Return a text for a figure, in which a dollar sign begins no mathematics."""
    return one_line(text).replace("$", r"\$")
