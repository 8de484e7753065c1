"""Encoding of tables of numbers and codes, one row of float32 per case.

The columns of numbers come first and may hold NaN, which is a missing value.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.data.specs import IntArray, RawData

Floats = npt.NDArray[np.float32]


def one_hot(positions: npt.NDArray[np.integer[Any]], size: int) -> Floats:
    """Return one-hot rows ``[rows, size]``; position -1 is a row of 0."""
    rows = np.zeros((len(positions), size), np.float32)
    known = np.flatnonzero(positions >= 0)
    rows[known, positions[known]] = 1.0
    return rows


def standardised(raw: RawData, train_rows: IntArray, numbers: int) -> RawData:
    """Bring the columns of numbers to mean 0 and deviation 1; missing values become 0.

    The first ``numbers`` columns are numbers; the other columns stay. Means and deviations
    are taken over all clients' training rows, without missing values. A server could add
    them up from the clients' sums. Scales per client would remove the shift between
    clients, which the methods are about.
    """
    values = raw.features[:, :numbers].astype(np.float64)
    known = values[train_rows]
    present = np.isfinite(known)
    counts = np.maximum(present.sum(axis=0), 1)
    means = np.where(present, known, 0.0).sum(axis=0) / counts
    squares = np.where(present, (known - means) ** 2, 0.0).sum(axis=0) / counts
    scales = np.where(squares > 0, np.sqrt(squares), 1.0)
    features = raw.features.copy()
    features[:, :numbers] = np.nan_to_num((values - means) / scales, nan=0.0)
    return replace(raw, features=features)
