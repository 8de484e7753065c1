"""Messages that are out at nodes, for rounds that do not wait for all replies."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from fedsuite.rounds.exchange import ReplyReader

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Sent:
    """One message to a node.

    Parameters
    ----------
    reader
        Reads the replies to its exchange.
    node_id
        Where it went.
    deadline
        Monotonic time after which nobody waits for its reply.
    """

    reader: ReplyReader
    node_id: int
    deadline: float


@dataclass
class Outstanding:
    """Pushes messages, and pulls their replies whenever they come."""

    _sent: dict[str, Sent] = field(default_factory=dict)

    def clients(self) -> set[int]:
        """Return the clients that have not replied yet."""
        return {k for sent in self._sent.values() for k in _clients(sent)}

    def push(
        self, grid: Grid, reader: ReplyReader, messages: Iterable[Message], timeout: float
    ) -> None:
        """Send the messages of an exchange."""
        # A list: over HTTP Flower goes through them twice.
        pushed, deadline = list(messages), time.monotonic() + timeout
        for message_id, message in zip(grid.push_messages(pushed), pushed, strict=True):
            node_id = message.metadata.dst_node_id
            self._sent[message_id] = Sent(reader, node_id, deadline)

    def pull(
        self, grid: Grid, enough: Callable[[int], bool], timeout: float
    ) -> Iterator[tuple[Sent, Message]]:
        """Yield replies until so many clients answered, nobody is out, or time is up."""
        arrived, deadline = 0, time.monotonic() + timeout
        while self._sent and not enough(arrived) and time.monotonic() < deadline:
            for reply in grid.pull_messages(list(self._sent)):
                sent = self._sent.pop(reply.metadata.reply_to_message_id)
                arrived += 0 if reply.has_error() else len(_clients(sent))
                yield sent, reply
            if self._sent and not enough(arrived):
                time.sleep(_POLL_SECONDS)

    def overdue(self) -> set[int]:
        """Return the clients that nobody waits for any more, and forget them."""
        now = time.monotonic()
        late = {key: sent for key, sent in self._sent.items() if sent.deadline <= now}
        for key in late:
            del self._sent[key]
        return {k for sent in late.values() for k in _clients(sent)}


def _clients(sent: Sent) -> list[int]:
    return list(sent.reader.clients_of(sent.node_id))
