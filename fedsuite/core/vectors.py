"""Norms, and sparse top-k vectors.

A sparse vector travels as one bit per entry, which marks the kept entries, and the values
of the kept entries. Unlike a list of positions, every such pair is valid.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def norm(*arrays: NDArray[Any]) -> float:
    """Return the Euclidean norm of all arrays together, in float64.

    Infinity where it overflows. Sums avoid BLAS, whose bits depend on its threads, and so
    on the engine.
    """
    with np.errstate(over="ignore"):
        squares = (float(np.square(array, dtype=np.float64).sum()) for array in arrays)
        return math.sqrt(sum(squares))


def largest(vector: Vector, count: int) -> NDArray[np.bool_]:
    """Return a mask of the ``count`` entries of largest magnitude.

    Ties go to the lowest index. A count of 0 or less marks no entry; a count beyond the
    length marks all entries.
    """
    if count >= vector.size:
        return np.ones(vector.shape, dtype=np.bool_)
    if count <= 0:
        return np.zeros(vector.shape, dtype=np.bool_)
    sizes = np.abs(vector)
    threshold = np.partition(sizes, vector.size - count)[vector.size - count]
    kept: NDArray[np.bool_] = sizes > threshold
    kept[np.flatnonzero(sizes == threshold)[: count - int(kept.sum())]] = True
    return kept


def top_k(vector: Vector, count: int) -> Vector:
    """Return a vector with the ``count`` entries of largest magnitude, and 0 elsewhere."""
    return np.where(largest(vector, count), vector, 0.0)


def pack(vector: Vector, kept: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], Vector]:
    """Return the mask as bits, and the values of the kept entries."""
    return np.packbits(kept), vector[kept]


def unpack(bits: NDArray[np.uint8], values: NDArray[np.floating], size: int) -> Vector:
    """Return the vector of ``size`` entries, 0 where not kept, from :func:`pack`'s output.

    Surplus bits and values are left out.
    """
    places = np.flatnonzero(np.unpackbits(bits, count=size))[: values.size]
    vector = np.zeros(size)
    vector[places] = values[: places.size]
    return vector


def packed_size(size: int) -> int:
    """Return the number of bytes that hold a mask of ``size`` bits."""
    return -(-size // 8)
