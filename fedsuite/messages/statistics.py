"""Which arrays of a model are measured rather than trained."""

from typing import Any

from numpy.typing import NDArray

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def is_statistic(name: str, array: NDArray[Any]) -> bool:
    """Return whether an array is counted or measured rather than trained.

    These are integer arrays, and the statistics of normalisation layers by the names
    that torch gives them.
    """
    return array.dtype.kind != "f" or name.rpartition(".")[2] in _STATISTICS
