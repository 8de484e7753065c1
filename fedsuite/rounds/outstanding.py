"""Messages whose replies come in any later round, for rounds that do not wait for all."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from fedsuite.core.logs import ServerLogger
from fedsuite.rounds.exchange import ReplyReader
from fedsuite.workarounds import sending

logger = ServerLogger(__name__)

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Sent:
    """One message to a node.

    Parameters
    ----------
    whole
        Reader of its exchange.
    reader
        Reads the replies of its node alone.
    node_id
        Where it went.
    deadline
        Monotonic time after which nobody waits for its reply.
    """

    whole: ReplyReader
    reader: ReplyReader
    node_id: int
    deadline: float

    @property
    def clients(self) -> list[int]:
        """The clients that it asks."""
        return list(self.whole.clients_of(self.node_id))


@dataclass
class Outstanding:
    """Pushes messages, and pulls their replies whenever they come."""

    _sent: dict[str, Sent] = field(default_factory=dict)
    _refused: list[tuple[Sent, Message]] = field(default_factory=list)
    _next_look: float = 0.0

    def clients(self) -> set[int]:
        """Return the clients that have not replied yet."""
        return {k for sent in self._sent.values() for k in sent.clients}

    def push(
        self, grid: Grid, reader: ReplyReader, messages: Iterable[Message], timeout: float
    ) -> None:
        """Send the messages of an exchange."""
        deadline = time.monotonic() + timeout

        def to(node_id: int) -> Sent:
            return Sent(reader, reader.part([node_id]), node_id, deadline)

        nodes, refused = sending.push(grid, messages)
        self._sent |= {message_id: to(node_id) for message_id, node_id in nodes.items()}
        self._refused += [(to(error.metadata.src_node_id), error) for error in refused]

    def pull(
        self, grid: Grid, enough: Callable[[int], bool], timeout: float
    ) -> Iterator[tuple[Sent, Message]]:
        """Yield replies until so many clients answered, nobody is out, or time is up.

        A reply that comes twice is yielded twice, and counts once.
        """
        arrived, deadline = 0, time.monotonic() + timeout
        refused, self._refused = self._refused, []
        yield from refused
        while self._sent and not enough(arrived) and time.monotonic() < deadline:
            asked = dict(self._sent)
            nodes = {message_id: sent.node_id for message_id, sent in asked.items()}
            connected = None
            if (now := time.monotonic()) >= self._next_look:
                connected = set(grid.get_node_ids())
                self._next_look = now + sending.CONNECTED_EVERY_S
            for reply in sending.pull(grid, nodes, connected):
                message_id = reply.metadata.reply_to_message_id
                if message_id not in asked:
                    logger.warning("a reply came to a message that nobody waits for")
                    continue
                sent = asked[message_id]
                first = self._sent.pop(message_id, None) is not None
                if first and not reply.has_error():
                    arrived += len(sent.clients)
                yield sent, reply
            if self._sent and not enough(arrived):
                time.sleep(_POLL_SECONDS)

    def overdue(self) -> set[int]:
        """Return the clients that nobody waits for any more, and forget them."""
        now = time.monotonic()
        late = {key: sent for key, sent in self._sent.items() if sent.deadline <= now}
        for key in late:
            del self._sent[key]
        return {k for sent in late.values() for k in sent.clients}
