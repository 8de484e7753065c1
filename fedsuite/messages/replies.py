"""Replies that come one at a time, for who goes through them once or twice.

Flower's Grid returns a list, and Flower's wrappers for adaptive clipping go through it
twice: of an iterator they would find nothing the second time, and divide by zero.
"""

from collections.abc import Iterable, Iterator

from flwr.app import Message


class Replies(Iterator[Message]):
    """Replies as they come.

    A ``for`` loop keeps them for the next loop. A loop over :func:`once` keeps none, so a
    round's memory need not grow with its clients.

    Parameters
    ----------
    coming
        The replies.
    """

    def __init__(self, coming: Iterator[Message]) -> None:
        self._coming = coming
        self._kept: list[Message] = []

    def __next__(self) -> Message:
        """Return the next reply that has not come yet."""
        return next(self._coming)

    def __iter__(self) -> Iterator[Message]:
        """Yield the replies from the first."""
        position = 0
        while True:
            if position == len(self._kept):
                try:
                    self._kept.append(next(self._coming))
                except StopIteration:
                    return
            yield self._kept[position]
            position += 1

    def once(self) -> Iterator[Message]:
        """Return the replies for one loop; none is kept, if none was before."""
        return iter(self) if self._kept else self._coming


def once(replies: Iterable[Message]) -> Iterable[Message]:
    """Return replies for one loop, in which :class:`Replies` are not kept."""
    return replies.once() if isinstance(replies, Replies) else replies
