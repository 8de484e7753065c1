"""Lengths of changes of arrays, block by block, in memory that is used again.

A round takes the difference of each client's model and the server's. Whole arrays in
between would go through the processor's caches many times. Differences of float32 arrays
are taken in float32, and the length is right to seven digits; else in float64.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.messages.records import Arrays
from fedsuite.messages.statistics import is_statistic

_ROWS, _WIDTH = 32, 2048
"""A block: its rows are squared and added up to one, which float64 adds up."""

_SMALL = 1e-24
"""Sum of squares up to which float32 may have lost some; what overflowed is infinite."""

Pair = tuple[NDArray[Any], NDArray[Any] | None]
"""An array, and its origin of the same shape; None is an origin of 0."""


class Changes:
    """Sums of squares of differences of floating-point arrays."""

    def __init__(self) -> None:
        self._blocks: dict[np.dtype[Any], NDArray[Any]] = {}

    def squares_from(
        self, arrays: Mapping[str, NDArray[Any]], origin: Mapping[str, NDArray[Any]]
    ) -> float:
        """Return the sum over floating-point arrays; what the origin lacks is from 0.

        Infinity where the sum overflows.
        """
        pairs = [(a, origin.get(n)) for n, a in arrays.items() if a.dtype.kind == "f"]
        dtypes = {array.dtype for pair in pairs for array in pair if array is not None}
        if dtypes == {np.dtype(np.float32)}:
            squares = self._squares(pairs, np.dtype(np.float32))
            if _SMALL < squares < math.inf:
                return squares
        return self._squares(pairs, np.dtype(np.float64))

    def _squares(self, pairs: Sequence[Pair], dtype: np.dtype[Any]) -> float:
        squares = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in self._differences(pairs, dtype):
                # Without BLAS, whose bits depend on its threads.
                squares += float(np.einsum("ij,ij->j", rows, rows).sum(dtype=np.float64))
        return squares

    def _differences(
        self, pairs: Sequence[Pair], dtype: np.dtype[Any]
    ) -> Iterator[NDArray[Any]]:
        """Yield the differences one after the other in rows, with zeros behind the last."""
        if dtype not in self._blocks:
            self._blocks[dtype] = np.empty(_ROWS * _WIDTH, dtype)
        block, end = self._blocks[dtype], 0
        for array, origin in pairs:
            flat, start = array.reshape(-1), None if origin is None else origin.reshape(-1)
            done = 0
            while done < flat.size:
                part = slice(done, min(done + block.size - end, flat.size))
                done, place = part.stop, block[end : end + part.stop - part.start]
                if start is None:
                    np.copyto(place, flat[part])
                else:
                    np.subtract(flat[part], start[part], out=place, dtype=dtype)
                end += len(place)
                if end == block.size:
                    yield block.reshape(-1, _WIDTH)
                    end = 0
        count = -(-end // _WIDTH)
        block[end : count * _WIDTH] = 0
        if count:
            yield block[: count * _WIDTH].reshape(-1, _WIDTH)


def length(
    arrays: Mapping[str, NDArray[Any]],
    origin: Mapping[str, NDArray[Any]],
    changes: Changes | None = None,
) -> float:
    """Return the Euclidean length of floating-point arrays from an origin.

    Arrays that the origin lacks are measured from 0. Infinity where the length overflows.
    ``changes`` is memory to do it in.
    """
    total = (changes or Changes()).squares_from(arrays, origin)
    return math.sqrt(total) if math.isfinite(total) else math.inf


def trained(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays that training changes: all but the statistics of normalisation."""
    return {n: a for n, a in arrays.items() if not is_statistic(n, a)}


def statistics(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the statistics of normalisation layers among arrays."""
    return {n: a for n, a in arrays.items() if is_statistic(n, a)}
