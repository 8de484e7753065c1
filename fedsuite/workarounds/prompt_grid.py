"""Flower's Grid, asked for replies soon and handing out each as it comes.

Between machines Flower's own Grid looks for replies every three seconds and keeps them all
until the last is there: a fifth of a round where a method exchanges six messages in one,
and the memory of all replies where the models are large.

Seen in flwr 1.39.0 and 1.41.0. To delete: when Flower's ``send_and_receive`` has a pause
that can be set, and yields replies as they come.
"""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun

SHORTEST_PAUSE_S = 0.1
"""Between machines, where a look is a request and a SuperNode sleeps for seconds."""

SHORTEST_PAUSE_IN_MEMORY_S = 0.01
"""In Flower's simulation, which takes messages up every 0.1 s and replies at once."""

_LONGEST_PAUSE_S = 1.0
_SHARE_OF_WAIT = 0.05
_LOOKS_IN_A_PAUSE = 4


class PromptGrid(Grid):
    """A Grid of Flower's whose replies are looked for soon.

    The pauses grow with the wait: they add a twentieth to it at most, or the shortest
    pause, and a wait of hours costs a request a second. A look that takes long, as where
    very many messages are under way, is followed by a pause four times as long. In a Flower
    app of your own: ``PromptGrid(grid)`` in place of ``grid``.

    Parameters
    ----------
    grid
        What sends and receives.
    shortest_pause
        Seconds from one look to the next, at the least.
    """

    def __init__(self, grid: Grid, shortest_pause: float = SHORTEST_PAUSE_S) -> None:
        self._grid = grid
        self.shortest_pause = shortest_pause

    def set_run(self, run: FlowerRun) -> None:
        """Say which run it is."""
        self._grid.set_run(run)

    @property
    def run(self) -> FlowerRun:
        """Facts of the run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what is known of all nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come to these messages, each once."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now; yield each reply when it is there.

        Parameters
        ----------
        messages
            To send. One that Flower could not send has no reply.
        timeout
            Seconds to wait for replies; None waits for all of them.
        """
        sent = time.monotonic()
        # Flower has None for a message that it could not send, and has logged why.
        waiting = {key for key in self.push_messages(messages) if key is not None}
        return self._replies(waiting, sent, timeout)

    def _replies(
        self, waiting: set[str], sent: float, timeout: float | None
    ) -> Iterator[Message]:
        while waiting:
            # The last look is after the deadline: what came in time is taken.
            began, found = time.monotonic(), False
            late = timeout is not None and began - sent >= timeout
            # A list: a Grid may go through it while replies are handed out.
            for reply in self.pull_messages(list(waiting)):
                found = True
                waiting.discard(reply.metadata.reply_to_message_id)
                yield reply
            if late or not waiting:
                return
            now = time.monotonic()
            # Whoever asked has looked at what was found, in that time too.
            look = 0.0 if found else now - began
            pause = max(_SHARE_OF_WAIT * (now - sent), _LOOKS_IN_A_PAUSE * look)
            pause = min(max(pause, self.shortest_pause), _LONGEST_PAUSE_S)
            if timeout is not None:
                pause = min(pause, max(0.0, sent + timeout - time.monotonic()))
            time.sleep(pause)
