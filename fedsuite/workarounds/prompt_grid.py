"""A Flower Grid that looks for replies soon and yields each reply as it comes.

Between machines Flower's own Grid looks for replies every three seconds and keeps all
replies until the last is there. The pauses cost a fifth of a round with six exchanges. The
replies cost memory. Flower's wrappers for adaptive clipping go through them twice, which
:class:`Replies` allow. It waits until the deadline for replies to messages that were
refused, and in 1.43 for the replies of nodes that are gone.

Seen in flwr 1.39.0 to 1.43.0.dev. To delete when Flower's ``send_and_receive`` has a
settable pause and yields replies as they come.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import chain

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from typing_extensions import override

from fedsuite.workarounds.sending import CONNECTED_EVERY_S, pull, push

SHORTEST_PAUSE_S = 0.1
"""Shortest pause between machines, where a look is a request."""

SHORTEST_PAUSE_IN_MEMORY_S = 0.01
"""Shortest pause in Flower's simulation, where a look is cheap."""

_LONGEST_PAUSE_S = 1.0
_SHARE_OF_WAIT = 0.05
_LOOKS_IN_A_PAUSE = 4


class PromptGrid(Grid):
    """A Grid that looks for replies soon.

    The pauses grow with the wait. They add at most a twentieth to the wait, or the shortest
    pause. A wait of hours costs one request per second. A slow look is followed by a pause
    four times as long. Other Flower apps use ``PromptGrid(grid)`` in place of ``grid``.

    Parameters
    ----------
    grid
        Grid that sends and receives.
    shortest_pause
        Least seconds between looks.
    """

    def __init__(self, grid: Grid, shortest_pause: float = SHORTEST_PAUSE_S) -> None:
        self._grid = grid
        self.shortest_pause = shortest_pause

    @staticmethod
    def around(grid: Grid) -> Grid:
        """Return a PromptGrid around one of Flower's own Grids, and any other as it is."""
        flowers_own = type(grid).__module__.startswith("flwr.")
        return PromptGrid(grid) if flowers_own else grid

    @override
    def set_run(self, run: FlowerRun) -> None:
        self._grid.set_run(run)

    @property
    @override
    def run(self) -> FlowerRun:
        return self._grid.run

    @override
    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    @override
    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    @override
    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._grid.get_nodes()

    @override
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(  # type: ignore[override]
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> Iterable[Message]:
        """Return the replies that have come to messages, as the Grid itself does.

        The signature is that of Flower 1.43. ``message_ids`` is the earlier name, and no
        ids are all, where the Grid itself has that.
        """
        ids = message_ids if reply_to_message_ids is None else reply_to_message_ids
        given = () if ids is None else (ids,)
        return self._grid.pull_messages(*given)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now; return each reply when it is there.

        The reply of a node that is not connected any more is an error, within seconds. A
        reply that Flower cannot fetch does not come, as if its node were late.

        Parameters
        ----------
        messages
            Messages to send. The reply to one that Flower refused is an error, at once.
        timeout
            Seconds to wait for replies; None waits for all of them.
        """
        sent = time.monotonic()
        waiting, refused = push(self, messages)
        return Replies(chain(refused, self._replies(waiting, sent, timeout)))

    def _replies(
        self, waiting: dict[str, int], sent: float, timeout: float | None
    ) -> Iterator[Message]:
        next_look = sent + CONNECTED_EVERY_S
        while waiting:
            # The last look is after the deadline, so that all timely replies are taken.
            began, any_reply = time.monotonic(), False
            late = timeout is not None and began - sent >= timeout
            connected: set[int] | None = None
            if began >= next_look:
                # Before the replies, so that who replied and left is heard.
                connected, next_look = set(self.get_node_ids()), began + CONNECTED_EVERY_S
            for reply in pull(self, waiting, connected):
                any_reply = True
                waiting.pop(reply.metadata.reply_to_message_id, None)
                yield reply
            if late or not waiting:
                return
            now = time.monotonic()
            # This time includes the caller's work on the replies.
            look = 0.0 if any_reply else now - began
            pause = max(_SHARE_OF_WAIT * (now - sent), _LOOKS_IN_A_PAUSE * look)
            pause = min(max(pause, self.shortest_pause), _LONGEST_PAUSE_S)
            if timeout is not None:
                pause = min(pause, max(0.0, sent + timeout - time.monotonic()))
            time.sleep(pause)


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
