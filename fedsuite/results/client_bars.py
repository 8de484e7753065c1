"""Stacked bars of clients; neighbours share a column if there are too many clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch
from numpy.typing import NDArray

FEW = 120
"""Most clients with bars separated by gaps."""

MOST_BARS = 3000
"""Most bars to draw one by one, at half a millisecond each."""

MOST_COLUMNS = 1000
"""Most columns of a figure."""


@dataclass(frozen=True)
class Columns:
    """Stacked columns of clients.

    Parameters
    ----------
    edges
        Beginnings of the columns, and the end of the last.
    heights
        Shape (layers, columns), the lowest layer first.
    clients_each
        Clients per column, whose heights are means; the last column may have fewer.
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
        """Return the label of the axis of clients, with the meaning of a column."""
        if self.clients_each == 1:
            return text
        return f"{text} (a column is the mean of {self.clients_each} neighbours)"


def columns_of(heights: NDArray[Any], most: int = MOST_COLUMNS, first: int = 0) -> Columns:
    """Return heights of clients, shape (layers, clients), as at most so many columns.

    The first client stands at position ``first``, the others follow at distances of 1.
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
    """Draw clients as stacked bars, or as one area per layer if there are too many.

    Parameters
    ----------
    axes
        Axes to draw on.
    heights, first
        As for :func:`columns_of`.
    colours, labels
        Colours and labels of the layers, the lowest first.
    width
        Width of a bar of one client.
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
    """Draw an area as ``axes.stairs`` does, without its seconds of work per edge."""
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
