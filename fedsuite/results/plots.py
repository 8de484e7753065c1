"""The common look of figures, on screen and on paper.

A figure of matplotlib is made of its objects, without pyplot, whose global state would
reach into the caller's session.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedsuite.results.panels import Panel

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours for the colour-blind, without yellow, too pale for lines."""

LINE_STYLES = ("-", "--", ":", "-.")


def dress(axes: "Axes", title: str, x_label: str, y_label: str) -> None:
    """Set a panel's title, labels and common look."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def band_edges(
    values: NDArray[np.float64], panel: "Panel"
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mean, and mean minus and plus the sample standard deviation, over seeds.

    Parameters
    ----------
    values
        Shape (seeds, rounds).
    panel
        Says what they are multiplied by, and which bounds no edge leaves.
    """
    scale = panel.scale
    mean = scale * values.mean(axis=0)
    std = scale * values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    return mean, np.clip(mean - std, *panel.bounds), np.clip(mean + std, *panel.bounds)


def line_style(index: int) -> dict[str, Any]:
    """Return a line's colour and style; each pair comes once before any repeats."""
    style = LINE_STYLES[index // len(PALETTE) % len(LINE_STYLES)]
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": style, "linewidth": 1.6}
