"""Which arrays of a model are measured rather than trained.

Where fedsuite has built the network, its buffers are measured: a run declares them with
:func:`buffers_declared`, on the server and at its clients. An app names its own with the
keyword ``buffers``. Beside these, names and dtypes tell.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from fedsuite.core.errors import ConfigError

_VARIANCES = frozenset({"running_var", "moving_variance"})
_STATISTICS = _VARIANCES | {"running_mean", "moving_mean", "num_batches_tracked"}
"""Last words of the names that torch and Keras give to what their layers measure."""

_COLLECTION = "batch_stats"
"""What Flax puts them in."""

_OF_ONE_NETWORK = re.compile(r"^[0-9]+/")

_declared: ContextVar[Collection[str]] = ContextVar("buffers", default=())


def is_statistic(name: str, array: NDArray[Any]) -> bool:
    """Return whether an array is counted or measured rather than trained.

    These are arrays that are not of floating-point numbers, the statistics of
    normalisation layers by the names that torch, Keras and Flax give them, and what is
    declared.
    """
    return array.dtype.kind != "f" or name in _declared.get() or _is_named(name)


def is_variance(name: str) -> bool:
    """Return whether an array is a running variance by its name."""
    return _last_word(name) in _VARIANCES


@contextmanager
def buffers_declared(names: Collection[str]) -> Iterator[None]:
    """Count arrays of these names as measured inside the block."""
    token = _declared.set(frozenset(names) | frozenset(_declared.get()))
    try:
        yield
    finally:
        _declared.reset(token)


def names_of_buffers(buffers: Collection[str | int], arrays: Collection[str]) -> set[str]:
    """Return the names that names and positions stand for.

    Parameters
    ----------
    buffers
        Names, or positions from 0 as in a list of arrays.
    arrays
        Names of the model's arrays in their order; none where clients keep their models.

    Raises
    ------
    ConfigError
        If the model has no such array.
    """
    places = dict(enumerate(arrays))
    names = {str(places.get(b, b)) if isinstance(b, int) else b for b in buffers}
    # Messages of one network have its own names.
    known = {*arrays, *(_OF_ONE_NETWORK.sub("", name) for name in arrays)}
    if arrays and not names <= known:
        raise ConfigError(
            f"keyword buffers = {min(names - known)!r}: the model has no such array: give "
            f"names, or positions from 0 to {len(arrays) - 1}, of what is not trained"
        )
    return names


@lru_cache(maxsize=1 << 14)
def _is_named(name: str) -> bool:
    return _last_word(name) in _STATISTICS or _COLLECTION in re.findall(r"\w+", name)


@lru_cache(maxsize=1 << 14)
def _last_word(name: str) -> str:
    """Return the last word of a path, without the number that TensorFlow adds to it."""
    words = re.findall(r"\w+", name.partition(":")[0])
    return words[-1] if words else ""
