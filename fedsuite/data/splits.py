"""Which rows are for training, for tests, and for the server, before clients get any."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsuite.data.specs import IntArray, RawData
from fedsuite.rng import numpy_stream

_SPLIT_SEED = 0  # one test part for all seeds of an experiment


@dataclass(frozen=True)
class Parts:
    """Rows of a data set by what they are for, ascending.

    Parameters
    ----------
    train
        Divided among the clients to train on.
    client_test
        Divided among the clients to be tested on.
    test
        The global test set: the same rows as ``client_test``, or, where those were split
        off the training part, rows that no client holds.
    validation
        Kept by the server; no client holds any.
    """

    train: IntArray
    client_test: IntArray
    test: IntArray
    validation: IntArray

    @property
    def is_plain(self) -> bool:
        """Whether there are a training and a test part and no more."""
        return not len(self.validation) and np.array_equal(self.client_test, self.test)


def split_parts(
    raw: RawData,
    test_fraction: float,
    client_test_fraction: float = 0.0,
    validation_fraction: float = 0.0,
) -> Parts:
    """Split a data set, the same for all seeds of an experiment.

    Parameters
    ----------
    test_fraction
        As :func:`split_rows` takes it.
    client_test_fraction
        Share of the training part that clients are tested on, and the global test set is
        then the test part alone; 0 tests clients on rows of the test part.
    validation_fraction
        Share of the training part that the server keeps; the three leave it disjoint.
    """
    train, test = split_rows(raw, test_fraction)
    groups = raw.labels if raw.ids is None else raw.ids
    train, validation = _hold_out(train, groups, validation_fraction, "validation-split")
    if not client_test_fraction:
        return Parts(train, test, test, validation)
    # Both shares are of the whole training part.
    rest = client_test_fraction / (1 - validation_fraction)
    train, client_test = _hold_out(train, groups, rest, "client-test-split")
    return Parts(train, client_test, test, validation)


def split_rows(raw: RawData, test_fraction: float) -> tuple[IntArray, IntArray]:
    """Return the rows of the training part and of the test part, ascending.

    The published split where there is one. Otherwise a fixed random ``test_fraction`` of
    the rows of each natural owner, or of each class where rows have no owner; a group of
    at least two rows has at least one in each part.
    """
    num_rows = len(raw.labels)
    if raw.num_train is not None:
        return np.arange(raw.num_train), np.arange(raw.num_train, num_rows)
    groups = raw.labels if raw.ids is None else raw.ids
    return _hold_out(np.arange(num_rows), groups, test_fraction, "split")


def _hold_out(
    rows: IntArray, groups: IntArray, share: float, purpose: str
) -> tuple[IntArray, IntArray]:
    """Split rows into those that stay and a random share of each group."""
    if share == 0:
        return rows, np.empty(0, np.int64)
    shuffled = numpy_stream(_SPLIT_SEED, purpose).permutation(len(rows))
    shuffled_groups = groups[rows[shuffled]]
    order = shuffled[np.argsort(shuffled_groups, kind="stable")]
    is_out: npt.NDArray[np.bool_] = np.zeros(len(rows), np.bool_)
    for group in np.split(order, np.cumsum(np.bincount(shuffled_groups))[:-1]):
        size = min(max(round(share * len(group)), 1), len(group) - 1)
        is_out[group[: max(size, 0)]] = True
    return rows[~is_out], rows[is_out]
