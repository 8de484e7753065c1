"""Shared memory of two processes.

The sender copies an array into the shared memory once. The receiver reads the array there.
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
"""Place of an array as JSON: arena, offset in bytes, shape, dtype."""

Get = Callable[[Place], NDArray[Any]]
"""Function that returns the array at a place."""

TURNS = 2
"""Most messages of one worker at a time."""

REPLIES = 2 * TURNS
"""Most replies of one worker in shared memory at a time: those under way, and those still
in use."""

SHARED = 0
"""Number of the arena that all workers read."""

_ALIGNMENT = 64
_LEAST_BYTES = 1 << 16


class Arena:
    """A nameless file, mapped into memory, which grows as needed.

    One process writes and another reads. Their messages decide whose turn it is.

    Parameters
    ----------
    number
        Number of the arena in places.
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
        """Empty the arena: the next array lies at the start."""
        self._used = 0

    def put(self, array: NDArray[Any]) -> Place:
        """Append a copy of an array and return its place."""
        offset = self._used
        self._used = -(-(offset + array.nbytes) // _ALIGNMENT) * _ALIGNMENT
        if self._used > self._size:
            os.ftruncate(self._descriptor, max(self._used, 2 * self._size, _LEAST_BYTES))
        np.copyto(self._view(offset, array.shape, array.dtype), array)
        return [self._number, offset, list(array.shape), array.dtype.str]

    def get(self, place: Place) -> NDArray[Any]:
        """Return a read-only view of the array at a place."""
        _, offset, shape, dtype = place
        view = self._view(offset, tuple(shape), np.dtype(dtype))
        view.flags.writeable = False
        return view

    def copy(self, place: Place) -> NDArray[Any]:
        """Return a read-only copy of the array at a place."""
        array = np.array(self.get(place))
        array.flags.writeable = False
        return array

    def lend(self, give_back: Callable[[], object]) -> Get:
        """Return a function like :meth:`get` for arrays that stay in use for long.

        Parameters
        ----------
        give_back
            Function called when none of these arrays, or views of them, is in use.
        """
        size = os.fstat(self._descriptor).st_size
        whole = self._view(0, (size,), np.dtype(np.uint8))
        whole.flags.writeable = False
        # NumPy names this object as the base of all views.
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
            # Arrays in the old mapping keep it alive. Both mappings show the same file.
            self._size = os.fstat(self._descriptor).st_size
            self._map = mmap.mmap(self._descriptor, self._size)
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)


def new_descriptor() -> int:
    """Return an open file for an arena, in memory if the system allows."""
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
    """Return the number of the arena for a turn's messages to a worker."""
    return 1 + turn


def up_arena(reply: int) -> int:
    """Return the number of the arena for one of a worker's replies."""
    return 1 + TURNS + reply
