"""Which arrays of a model are measured rather than trained.

Where fedsuite has built the network, its buffers are measured: a run declares them with
:func:`buffers_declared`, on the server and at its clients. Elsewhere names and dtypes tell.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from numpy.typing import NDArray

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_declared: ContextVar[Collection[str]] = ContextVar("buffers", default=())


def is_statistic(name: str, array: NDArray[Any]) -> bool:
    """Return whether an array is counted or measured rather than trained.

    These are integer arrays, the statistics of normalisation layers by the names that
    torch gives them, and the network's buffers where they are declared.
    """
    return (
        array.dtype.kind != "f"
        or name.rpartition(".")[2] in _STATISTICS
        or name in _declared.get()
    )


@contextmanager
def buffers_declared(names: Collection[str]) -> Iterator[None]:
    """Count arrays of these names as measured inside the block."""
    token = _declared.set(frozenset(names) | frozenset(_declared.get()))
    try:
        yield
    finally:
        _declared.reset(token)
