"""Memory that two processes share.

Arrays cross from one process to another by being copied into it once; the other side looks
at them where they lie.
"""

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Place = list[Any]
"""Where an array lies: arena, offset in bytes, shape, dtype; fit for JSON."""

Get = Callable[[Place], NDArray[Any]]
"""Returns the array at a place."""

TURNS = 2
"""Messages that one worker may have at a time."""

REPLIES = 2 * TURNS
"""Replies of one worker that may lie in memory at a time: those under way, and others that
somebody still looks at."""

SHARED = 0
"""Number of the arena that all workers read from."""

_ALIGNMENT = 64
_LEAST_BYTES = 1 << 16


class Arena:
    """A file without a name, mapped into memory; it grows as needed.

    One process writes, another reads; they take turns by what they tell each other.

    Parameters
    ----------
    number
        What places call it.
    descriptor
        The open file; see :func:`new_descriptor`.
    """

    def __init__(self, number: int, descriptor: int) -> None:
        self._number = number
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._size = 0
        self._used = 0
        self._lent: weakref.ref[Any] | None = None

    def clear(self) -> None:
        """Let the next array lie at the start."""
        self._used = 0

    def put(self, array: NDArray[Any]) -> Place:
        """Copy an array in, behind those that are there, and return its place."""
        offset = self._used
        self._used = -(-(offset + array.nbytes) // _ALIGNMENT) * _ALIGNMENT
        if self._used > self._size:
            os.ftruncate(self._descriptor, max(self._used, 2 * self._size, _LEAST_BYTES))
        np.copyto(self._view(offset, array.shape, array.dtype), array)
        return [self._number, offset, list(array.shape), array.dtype.str]

    def get(self, place: Place) -> NDArray[Any]:
        """Return the array at a place, read-only, where it lies."""
        _, offset, shape, dtype = place
        view = self._view(offset, tuple(shape), np.dtype(dtype))
        view.flags.writeable = False
        return view

    def copy(self, place: Place) -> NDArray[Any]:
        """Return a copy of the array at a place, read-only."""
        array = np.array(self.get(place))
        array.flags.writeable = False
        return array

    def lend(self, give_back: Callable[[], object]) -> Get:
        """Return what :meth:`get` is, for arrays that somebody may look at for long.

        Parameters
        ----------
        give_back
            Called when nobody has any of these arrays, or views of them, any more.
        """
        size = os.fstat(self._descriptor).st_size
        whole = self._view(0, (size,), np.dtype(np.uint8))
        whole.flags.writeable = False
        # What NumPy's views name as their base, whichever they were made from.
        self._lent = weakref.ref(whole.base, lambda _: give_back())

        def get(place: Place) -> NDArray[Any]:
            _, offset, shape, name = place
            dtype = np.dtype(name)
            end = offset + math.prod(shape) * dtype.itemsize
            return whole[offset:end].view(dtype).reshape(shape)

        return get

    def _view(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        count = math.prod(shape)
        if self._map is None or offset + count * dtype.itemsize > self._size:
            # Arrays that lie in the old mapping keep it alive; both show the same file.
            self._size = os.fstat(self._descriptor).st_size
            self._map = mmap.mmap(self._descriptor, self._size)
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)


def new_descriptor() -> int:
    """Return an open file for an arena, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedsuite")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _LEAST_BYTES)
    return descriptor


class Arenas:
    """All arenas of one worker, by number."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.all = [Arena(number, fd) for number, fd in enumerate(descriptors)]

    def get(self, place: Place) -> NDArray[Any]:
        """Return the array at a place."""
        return self.all[place[0]].get(place)


def down_arena(turn: int) -> int:
    """Return the number of the arena to a worker, for messages of a turn."""
    return 1 + turn


def up_arena(reply: int) -> int:
    """Return the number of the arena back from a worker, for one of its replies."""
    return 1 + TURNS + reply
