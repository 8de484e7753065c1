"""Bars of clients: one each while they can be told apart, columns of very many."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch
from numpy.typing import NDArray

FEW = 120
"""Clients up to which each has bars of its own, which gaps tell from the next one's."""

MOST_BARS = 3000
"""Bars that may be drawn one by one: each costs half a millisecond."""

MOST_COLUMNS = 1000
"""Columns that a figure has pixels for; of more clients, neighbours share a column."""


@dataclass(frozen=True)
class Columns:
    """Stacked columns of clients.

    Parameters
    ----------
    edges
        Where the columns begin, and where the last one ends.
    heights
        Shape (layers, columns), the lowest layer first.
    clients_each
        Clients that share a column, whose heights are means; the last may have fewer.
    """

    edges: NDArray[np.float64]
    heights: NDArray[np.float64]
    clients_each: int

    @property
    def tops(self) -> NDArray[np.float64]:
        """Heights of whole columns."""
        tops: NDArray[np.float64] = self.heights.sum(axis=0)
        return tops

    def label(self, text: str) -> str:
        """Return the label of the axis of clients, with what a column stands for."""
        if self.clients_each == 1:
            return text
        return f"{text} (a column is the mean of {self.clients_each} neighbours)"


def columns_of(heights: NDArray[Any], most: int = MOST_COLUMNS, first: int = 0) -> Columns:
    """Return heights of clients as columns.

    Parameters
    ----------
    heights
        Shape (layers, clients), the lowest layer first.
    most
        Greatest number of columns.
    first
        Where the first client is; the others follow at distances of 1.
    """
    num_clients = heights.shape[1]
    each = -(-num_clients // most)
    starts = np.arange(0, num_clients, each)
    ends = np.append(starts[1:], num_clients)
    sums = np.add.reduceat(heights.astype(np.float64), starts, axis=1)
    edges = first + np.append(starts, num_clients) - 0.5
    return Columns(edges, sums / (ends - starts), each)


def draw_columns(
    axes: Axes,
    heights: NDArray[Any],
    colours: Sequence[Any],
    labels: Sequence[str] = (),
    *,
    width: float = 0.85,
    first: int = 0,
) -> Columns:
    """Draw clients as stacked bars, where those are too many as one area a layer.

    Parameters
    ----------
    axes
        Where to draw.
    heights
        Shape (layers, clients), the lowest layer first.
    colours, labels
        Of the layers.
    width
        Of a bar, where clients have one each.
    first
        Where the first client is; the others follow at distances of 1.
    """
    columns = columns_of(heights, first=first)
    tops = np.cumsum(columns.heights, axis=0)
    bottoms = np.vstack([np.zeros_like(tops[:1]), tops[:-1]])
    names = list(labels) or [""] * len(tops)
    few = heights.shape[1] <= FEW and heights.size <= MOST_BARS
    for bottom, top, height, colour, name in zip(
        bottoms, tops, columns.heights, colours, names, strict=True
    ):
        if few:
            positions = first + np.arange(len(height))
            axes.bar(
                positions, height, width, bottom, color=colour, linewidth=0, label=name
            )
        else:
            _draw_area(axes, columns.edges, bottom, top, colour, name)
    return columns


def _draw_area(
    axes: Axes,
    edges: NDArray[np.float64],
    bottom: NDArray[np.float64],
    top: NDArray[np.float64],
    colour: Any,
    label: str,
) -> None:
    """Draw what ``axes.stairs`` does, which looks at each edge for a curve: seconds."""
    area = StepPatch(
        top,
        edges,
        baseline=bottom,  # type: ignore[arg-type]  # its stub has forgotten arrays
        color=colour,
        linewidth=0,
        label=label,
    )
    area.sticky_edges.y.append(0.0)
    axes.add_artist(area)
    axes.update_datalim([(edges[0], 0.0), (edges[-1], top.max())])
    axes.autoscale_view()
