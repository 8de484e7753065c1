"""A cache with a bound, which drops the least recently used value."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LeastRecent(Generic[K, V]):
    """Values by key, up to a number of bytes.

    Parameters
    ----------
    limit
        Most bytes to hold. The last value put in stays, however large.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.held = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        """Return whether a value is held, without counting as a use."""
        return key in self._values

    def get(self, key: K) -> V | None:
        """Return a value and make it the most recent; None for an unknown key."""
        entry = self._values.get(key)
        if entry is None:
            return None
        self._values.move_to_end(key)
        return entry[0]

    @property
    def surplus(self) -> K | None:
        """Key of the least recent value if the cache is over its limit, else None."""
        if self.held <= self._limit or len(self._values) < 2:
            return None
        return next(iter(self._values))

    def add(self, key: K, value: V, size: int) -> None:
        """Add or replace a value of so many bytes, without dropping others."""
        self.drop(key)
        self._values[key] = value, size
        self.held += size

    def put(self, key: K, value: V, size: int) -> None:
        """Add a value, and drop the least recent values over the limit."""
        self.add(key, value, size)
        while (oldest := self.surplus) is not None:
            self.drop(oldest)

    def drop(self, key: K) -> bool:
        """Drop a value; return whether it was held."""
        entry = self._values.pop(key, None)
        if entry is not None:
            self.held -= entry[1]
        return entry is not None
