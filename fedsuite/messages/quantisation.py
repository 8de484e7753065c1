"""CFD's coding of soft labels to a coarse grid, which clients and server know.

F. Sattler, A. Marban, R. Rischke, W. Samek, "Communication-Efficient Federated
Distillation", arXiv:2012.00632. The grid of b bits holds the vectors of multiples of
1 / (2^b - 1) that sum to 1: with b = 1 the one-hot ones. Clients send only the change of a
sample's code since the last round, at H(Y_t | Y_{t-1}) bits per sample.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_BITS = 24
"""Most bits that float32 can resolve."""


def quantise(probabilities: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """Return the nearest grid point, in L1, of each row.

    Entries are rounded down. The missing units go to the largest remainders, and among
    equal remainders to the lowest index.

    Parameters
    ----------
    probabilities
        Rows of probabilities, ``[rows, classes]``, each with sum 1 but for rounding.
    bits
        b, 1 to 24.

    Raises
    ------
    ValueError
        If b is out of range, or a row is not a distribution.
    """
    if not 1 <= bits <= LARGEST_BITS:
        raise ValueError(f"bits = {bits}: expected 1 to {LARGEST_BITS}")
    values = np.asarray(probabilities, np.float64)
    total = values.sum(axis=1, keepdims=True)
    if not (np.isfinite(total).all() and (values >= 0).all() and (total > 0).all()):
        raise ValueError("rows to quantise: expected probabilities")
    levels = 2**bits - 1
    scaled = values / total * levels
    lower = np.floor(scaled)
    missing = levels - lower.sum(axis=1, keepdims=True)
    order = np.argsort(lower - scaled, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    nearest: NDArray[np.float64] = (lower + (rank < missing)) / levels
    return nearest
