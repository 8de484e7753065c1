"""A comparison for a paper: its curves as PDF or SVG, and its table as LaTeX."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.extras import naming_extras
from fedsuite.core.files import atomic_write, make_folder
from fedsuite.core.tasks import Score
from fedsuite.results.compare import Comparison, to_latex
from fedsuite.results.panels import (
    PANELS,
    Curve,
    Panel,
    by_seed,
    client_curves,
    score_curves,
    score_panels,
)
from fedsuite.results.plots import band_edges, dress, line_style
from fedsuite.results.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Half of the text's width in most journals, so that the letters need no scaling.
PANEL_INCHES = (3.4, 2.4)

STYLE: Any = {
    "font.size": 8,
    "lines.markersize": 3,
    # Journals refuse Type 3, matplotlib's own choice.
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedsuite",
    # A dollar sign in a label begins no mathematics.
    "text.parse_math": False,
}

BAND = "sample standard deviation over seeds"

NO_DATES: Mapping[str, Mapping[str, None]] = {
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}
"""Metadata by suffix, so that the same runs have the same bytes."""


def check_figure(path: Path) -> None:
    """Refuse a path that :func:`write_figure` cannot write, before anything is done.

    Raises
    ------
    ConfigError
        If its suffix is of no format for papers.
    MissingExtraError
        If matplotlib is not installed.
    """
    if path.suffix.lower() not in NO_DATES:
        raise ConfigError(f"--figure {path}: expected a file that ends in .pdf or .svg")
    with naming_extras(f"--figure {path}"):
        import matplotlib.figure  # noqa: F401


def write_figure(comparison: Comparison, path: Path) -> str:
    """Write a comparison's curves, and return what a caption must say of them."""
    import matplotlib

    suffix = path.suffix.lower()
    content = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure = curves_figure(comparison)
        figure.savefig(content, format=suffix[1:], metadata=dict(NO_DATES[suffix]))
    make_folder(path.parent)
    atomic_write(path, content.getvalue())
    spread = f"; bands: {BAND}" if _has_bands(comparison) else ""
    return f"means over clients, each counting once{spread}"


def check_table(path: Path) -> None:
    """Refuse a path of no LaTeX file; ConfigError."""
    if path.suffix.lower() != ".tex":
        raise ConfigError(f"--table {path}: expected a file that ends in .tex")


def write_table(comparison: Comparison, path: Path) -> None:
    """Write a comparison's table as LaTeX."""
    make_folder(path.parent)
    atomic_write(path, to_latex(comparison).encode())


def curves_figure(comparison: Comparison) -> "Figure":
    """Draw curves against rounds, one per experiment, in each panel that has data.

    The first two panels are of the comparison's score. RunError if there is no data.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    curves = [
        [_curves(run, comparison.score) for run in group.runs]
        for group in comparison.groups
    ]
    panels = [
        panel
        for panel in (*score_panels(comparison.score), *PANELS)
        if any(run[panel.key] for group in curves for run in group)
    ]
    if not panels:
        raise RunError(
            f"no curves to draw: the runs hold no losses and no {comparison.score.title}"
        )
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for index, group in enumerate(curves):
            _draw(axes, group, panel, index)
        dress(axes, panel.title, "round", panel.label)
        axes.title.set_fontsize(STYLE["font.size"])
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    handles: list[Any] = []
    labels: list[str] = []
    if len(curves) > 1:
        # All experiments, even those that a panel lacks: the legend is the whole figure's.
        handles = [
            grid.flat[0].plot([], [], **line_style(i))[0] for i in range(len(curves))
        ]
        labels = [textwrap.fill(g.label, 45 * columns) for g in comparison.groups]
    if _has_bands(comparison):
        handles.append(Patch(color="0.5", alpha=0.3, lw=0))
        labels.append(BAND)
    if handles:
        several = max(1, 60 * columns // (8 + max(map(len, labels))))
        options: dict[str, Any] = {"ncols": several, "frameon": False}
        figure.legend(handles, labels, loc="outside lower center", **options)
    return figure


def _has_bands(comparison: Comparison) -> bool:
    return any(len(group.runs) > 1 for group in comparison.groups)


def _curves(run: Run, score: Score) -> dict[str, Curve]:
    """Return the curves of all panels, and of those of a score."""
    return {**client_curves(run, PANELS), **score_curves(run, score)}


def _draw(
    axes: "Axes", curves: Sequence[Mapping[str, Curve]], panel: Panel, index: int
) -> None:
    """Draw an experiment's mean over seeds in its band, and what stands beside, dotted."""
    style = line_style(index)
    for key in filter(None, (panel.key, panel.beside)):
        rounds, values = by_seed(curves, key)
        if not rounds:
            continue
        mean, low, high = band_edges(values, panel)
        marker: dict[str, Any] = {"marker": "o"} if len(rounds) <= 30 else {}
        if key == panel.beside:
            dotted = {"linestyle": ":", "linewidth": 1.0, "markerfacecolor": "white"}
            axes.plot(rounds, mean, **{**style, **dotted, **marker})
            continue
        axes.plot(rounds, mean, **style, **marker)
        if len(values) > 1:
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.2, lw=0)
