"""Positions of very many clients' rows in two arrays, in place of an array per client."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Self, overload

import numpy as np

from fedsuite.data.specs import IntArray


class Rows(Sequence[IntArray]):
    """Each client's positions, as a sequence of arrays that are made when asked for.

    An array of its own costs 112 bytes a client beside its positions, which is most of the
    memory where a million clients have a few rows each.

    Parameters
    ----------
    positions
        Positions of all clients, one client after the other.
    sizes
        How many of them each client has.
    """

    def __init__(self, positions: IntArray, sizes: IntArray) -> None:
        self.sizes = sizes
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self.positions = positions[: self._ends[-1] if len(sizes) else 0]

    @classmethod
    def of(cls, clients: Iterable[IntArray]) -> "Rows":
        """Return rows of arrays, one per client."""
        if isinstance(clients, Rows):
            return clients
        held = list(clients)
        sizes = np.array([len(rows) for rows in held], np.int64)
        empty = np.empty(0, np.int64)
        return cls(np.concatenate([empty, *held]).astype(np.int64, copy=False), sizes)

    @classmethod
    def even(cls, positions: IntArray, num_clients: int) -> Self:
        """Return rows of clients with equally many; the first have one more if need be."""
        least, more = divmod(len(positions), num_clients)
        sizes = np.full(num_clients, least, np.int64)
        sizes[:more] += 1
        return cls(positions, sizes)

    @property
    def owners(self) -> IntArray:
        """Client of each position."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def ascending(self) -> "Rows":
        """Return the same with each client's positions in order."""
        return Rows(self.positions[np.lexsort((self.positions, self.owners))], self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> IntArray: ...
    @overload
    def __getitem__(self, index: slice) -> "tuple[IntArray, ...]": ...
    def __getitem__(self, index: int | slice) -> "IntArray | tuple[IntArray, ...]":
        if isinstance(index, slice):
            return tuple(self[k] for k in range(*index.indices(len(self))))
        end = self._ends[index]
        return self.positions[end - self.sizes[index] : end]

    def __iter__(self) -> Iterator[IntArray]:
        first = 0
        for end in self._ends.tolist():
            yield self.positions[first:end]
            first = end
