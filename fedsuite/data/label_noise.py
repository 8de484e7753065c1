"""Symmetric label noise: some training labels become another class at random."""

import numpy as np

from fedsuite.core.errors import DataError
from fedsuite.data.specs import IntArray


def flip_labels(
    labels: IntArray, num_classes: int, ratio: float, rng: np.random.Generator
) -> IntArray:
    """Return labels with a share of wrong labels.

    Exactly ``ratio`` of the rows, rounded to the nearest whole number, are drawn without
    replacement. Each drawn row gets one of the other classes, all equally likely.

    Parameters
    ----------
    labels
        Classes, 0 to ``num_classes - 1``; left as they are.
    num_classes
        At least 2, unless ``ratio`` is 0.
    ratio
        Share of wrong labels, 0 to 1; 0 returns the labels themselves.
    rng
        Makes the draws.
    """
    if ratio == 0.0:
        return labels
    if num_classes < 2:
        raise DataError("label-noise needs a data set of at least two classes")
    rows = rng.choice(len(labels), size=int(np.rint(ratio * len(labels))), replace=False)
    noisy = labels.copy()
    # Steps of 1 to num_classes - 1 around the ring of classes: never back to the start.
    noisy[rows] += rng.integers(1, num_classes, size=len(rows))
    noisy %= num_classes
    return noisy
