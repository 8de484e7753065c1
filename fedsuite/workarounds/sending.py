"""Messages that are sent, paired with their ids, whatever a Grid says of them.

Flower's Grids tell in three ways which messages they refused: by the id ``""``, by no id in
its place, and by an empty list where one of them was too large. The error that the
SuperLink sends for a dead node does not name the node, and in 1.43 there is none.

Seen in flwr 1.39.0 to 1.43.0.dev. To delete when ``push_messages`` tells of each message
whether it was taken, and the SuperLink answers for a dead node in the node's name.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedsuite.workarounds.identity import set_message_id

REFUSED = -1
"""Code of the error in place of a reply to a message that was refused; Flower has none."""

_REASON = (
    "Flower refused the message to its node: the node is gone, or the message is too large"
)
_GONE = "the node is not connected any more"

CONNECTED_EVERY_S = 5.0
"""Seconds between looks whether the nodes that are waited for are still connected."""


def push(grid: Grid, messages: Iterable[Message]) -> tuple[dict[str, int], list[Message]]:
    """Send messages.

    Returns
    -------
    nodes
        Id to node of each message that is under way.
    refused
        Error replies to the others.
    """
    # A list: over HTTP Flower goes through them twice.
    pushed = list(messages)
    nodes: dict[str, int] = {}
    refused: list[Message] = []
    for message, message_id in zip(pushed, _pushed_ids(grid, pushed), strict=True):
        if message_id:
            nodes[message_id] = message.metadata.dst_node_id
        else:
            refused.append(Message(Error(REFUSED, _REASON), reply_to=message))
    return nodes, refused


def pull(
    grid: Grid, nodes: Mapping[str, int], connected: Collection[int] | None = None
) -> Iterator[Message]:
    """Yield the replies that there are to messages under way, perhaps one of them twice.

    Parameters
    ----------
    grid
        Where they were sent.
    nodes
        Id to node of each message under way.
    connected
        Nodes that were connected just before; an error comes in place of the others'
        replies. None looks for replies alone.
    """
    # A copy, because its owner takes out what is answered.
    silent = dict(nodes)
    for reply in grid.pull_messages(list(silent)):
        message_id = reply.metadata.reply_to_message_id
        node_id = silent.pop(message_id, nodes.get(message_id))
        if reply.has_error() and node_id is not None:
            # Where a node is gone, the SuperLink answers, in its own name.
            reply.metadata.__dict__["_src_node_id"] = node_id
        yield reply
    for message_id, node_id in silent.items():
        if connected is not None and node_id not in connected:
            asked = Message(RecordDict(), node_id, "query")
            set_message_id(asked, message_id)
            yield Message(Error(ErrorCode.NODE_UNAVAILABLE, _GONE), reply_to=asked)


def _pushed_ids(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Send messages; return each one's id, empty for one that was refused."""
    if not messages:
        return []
    ids = list(grid.push_messages(messages))
    taken = {message_id for message_id in ids if message_id}
    # Flower's Grids write the ids into the messages, whether or not they take them.
    own = [message.metadata.message_id for message in messages]
    if taken and taken <= set(own):
        return [message_id if message_id in taken else "" for message_id in own]
    if len(ids) == len(messages):
        return [message_id or "" for message_id in ids]
    if len(messages) == 1:
        return [next(iter(taken), "")]
    # Nobody can tell which they are, or one was too large for all. A message that is sent
    # twice gets the same reply.
    return [_pushed_ids(grid, [message])[0] for message in messages]
