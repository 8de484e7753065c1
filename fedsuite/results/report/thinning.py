"""Fewer points of long curves, chosen so that no extreme is hidden."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 600
"""Most points of a curve that are all drawn."""

ALL_CURVES = 12_000
"""Most points of all curves of a figure."""


def most_points(num_curves: int) -> int:
    """Return the most points of each of so many curves of one figure."""
    return min(MOST_POINTS, max(ALL_CURVES // max(num_curves, 1), 40))


def drawn_positions(
    values: Sequence[float] | NDArray[np.float64], most: int = MOST_POINTS
) -> list[int]:
    """Return the positions of the points to draw, all for a short curve.

    Of each stretch of neighbours these are the lowest and the highest value; the first and
    the last point are always among them.
    """
    numbers = np.asarray(values, dtype=np.float64)
    count = len(numbers)
    if count <= most:
        return list(range(count))
    edges = np.linspace(0, count, most // 2 + 1).astype(int)
    positions = {0, count - 1}
    for begin, end in pairwise(edges):
        stretch = numbers[begin:end]
        positions |= {int(begin + stretch.argmin()), int(begin + stretch.argmax())}
    return sorted(positions)


def thinning_note(count: int, most: int = MOST_POINTS) -> str:
    """Return what a reader must know of a curve with so many rounds; empty for few."""
    if count <= most:
        return ""
    return (
        f"{count:,} rounds: of about every {2 * count / most:.3g} rounds the lowest and "
        "the highest value are drawn, so that no peak is hidden."
    )
