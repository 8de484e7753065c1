"""Changes of arrays in float64, block by block, in memory that is used again.

A round takes the difference of each client's model and the server's. Whole arrays in
between would go through the processor's caches many times.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16


class Changes:
    """Squares of differences of arrays, to the bits of NumPy's sum over a whole array."""

    def __init__(self) -> None:
        self._change, self._other = np.empty(_BLOCK), np.empty(_BLOCK)

    def squares(self, array: NDArray[Any], origin: NDArray[Any] | float) -> float:
        """Return the sum of squares of ``array - origin``; infinity where it overflows.

        Parameters
        ----------
        array, origin
            Of one shape, or an origin of 0.
        """
        start = np.reshape(origin, -1) if isinstance(origin, np.ndarray) else None
        with np.errstate(over="ignore", invalid="ignore"):
            # Without BLAS, whose bits depend on its threads.
            return float(self._sum(array.reshape(-1), start))

    def squares_from(
        self, arrays: Mapping[str, NDArray[Any]], origin: Mapping[str, NDArray[Any]]
    ) -> float:
        """Return the sum over floating-point arrays; what the origin lacks is from 0."""
        floats = [(n, a) for n, a in arrays.items() if a.dtype.kind == "f"]
        return sum(self.squares(a, origin.get(n, 0.0)) for n, a in floats)

    def _sum(self, array: NDArray[Any], origin: NDArray[Any] | None) -> float:
        size = array.size
        if size > _BLOCK:
            # NumPy halves a sum at a multiple of 8, and so on down to its own blocks.
            half = size // 2 - size // 2 % 8
            first, second = (
                self._sum(array[part], None if origin is None else origin[part])
                for part in (slice(half), slice(half, None))
            )
            return first + second
        made, other = self._change[:size], self._other[:size]
        # Converted first: a difference in another dtype goes through small buffers.
        np.copyto(made, array)
        if origin is not None:
            np.copyto(other, origin)
            np.subtract(made, other, out=made)
        total: float = np.square(made, out=other).sum()
        return total
