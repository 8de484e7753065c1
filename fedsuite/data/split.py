"""Which rows of a data set are for training, and which for tests."""

import numpy as np
import numpy.typing as npt

from fedsuite.data.specs import IntArray, RawData
from fedsuite.rng import numpy_stream

_SEED = 0  # one test part for all seeds of an experiment


def split_rows(raw: RawData, test_fraction: float) -> tuple[IntArray, IntArray]:
    """Return the rows of the training part and of the test part, ascending.

    The published split where there is one. Otherwise a fixed random ``test_fraction`` of
    the rows of each stratum: unless the data set says otherwise each natural owner, or each
    class where rows have no owner. Of at least two rows there is at least one in each part.
    Where rows belong to groups, groups are drawn instead of rows, each as one of its first
    row's stratum.
    """
    num_rows = len(raw.labels)
    if raw.num_train is not None:
        return np.arange(raw.num_train), np.arange(raw.num_train, num_rows)
    strata = raw.strata
    if strata is None:
        strata = raw.labels if raw.ids is None else raw.ids
    if raw.groups is None:
        is_test = _draw_test(strata, test_fraction)
    else:
        first, group_of = np.unique(raw.groups, return_index=True, return_inverse=True)[1:]
        is_test = _draw_test(strata[first], test_fraction)[group_of]
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _draw_test(strata: IntArray, test_fraction: float) -> npt.NDArray[np.bool_]:
    """Return which things belong to the test part, the same share of each stratum."""
    shuffled = numpy_stream(_SEED, "split").permutation(len(strata))
    numbers = strata[shuffled]
    order = shuffled[np.argsort(numbers, kind="stable")]
    is_test = np.zeros(len(strata), np.bool_)
    for part in np.split(order, np.cumsum(np.bincount(numbers))[:-1]):
        size = min(max(round(test_fraction * len(part)), 1), len(part) - 1)
        is_test[part[: max(size, 0)]] = True
    return is_test
