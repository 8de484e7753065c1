"""Changes of arrays in float64, in memory that is used again.

A round takes the difference of each client's model and the server's. In new memory that
takes several times as long, because the system clears each of its pages.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.vectors import Vector


class Changes:
    """Differences of arrays and their squares, one array at a time."""

    def __init__(self) -> None:
        self._change = self._other = np.zeros(0)

    def of(self, array: NDArray[Any], origin: NDArray[Any] | float) -> Vector:
        """Return ``array - origin``, flat, until the next call; both in C order."""
        size = array.size
        if size > self._change.size:
            self._change, self._other = np.empty(size), np.empty(size)
        change, other = self._change[:size], self._other[:size]
        # Converted first: a difference in another dtype goes through small buffers.
        np.copyto(change, array.reshape(-1))
        np.copyto(other, np.reshape(origin, -1))
        return np.subtract(change, other, out=change)

    def squares(self, change: Vector) -> float:
        """Return the sum of squares of what :meth:`of` returned."""
        # Without BLAS, whose bits depend on its threads.
        return float(np.square(change, out=self._other[: change.size]).sum())

    def squares_from(
        self, arrays: Mapping[str, NDArray[Any]], origin: Mapping[str, NDArray[Any]]
    ) -> float:
        """Return the sum of squares of floating-point arrays less those of the origin.

        Arrays that the origin lacks are measured from 0. Infinity where it overflows.
        """
        floats = [(n, a) for n, a in arrays.items() if a.dtype.kind == "f"]
        with np.errstate(over="ignore", invalid="ignore"):
            return sum(self.squares(self.of(a, origin.get(n, 0.0))) for n, a in floats)
