"""Vectors of which a part is kept, as both sides of the wire need them.

A sparse vector travels as one bit an entry that says which entries are there, and the
values of those: unlike a list of positions, every such pair can be read.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def largest(vector: Vector, count: int) -> NDArray[np.bool_]:
    """Return which entries are the ``count`` of largest magnitude.

    Ties go to the lowest index. A count of 0 or less keeps none, one beyond the length all.
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
    """Return the bits that say which entries are kept, and the values of those."""
    return np.packbits(kept), vector[kept]


def unpack(bits: NDArray[np.uint8], values: NDArray[np.floating], size: int) -> Vector:
    """Return the vector of ``size`` entries that :func:`pack` was given, 0 where not kept.

    Of bits and values that do not fit, what is too much is left out.
    """
    places = np.flatnonzero(np.unpackbits(bits, count=size))[: values.size]
    vector = np.zeros(size)
    vector[places] = values[: places.size]
    return vector


def packed_size(size: int) -> int:
    """Return the number of bytes whose bits say which of ``size`` entries are kept."""
    return -(-size // 8)
