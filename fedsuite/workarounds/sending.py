"""Messages that are sent, paired with their ids, whatever a Grid says of them.

Flower's Grids tell in three ways which messages they refused: by the id ``""``, by no id in
its place, and by an empty list where one of them was too large. The error that the
SuperLink sends for a dead node does not name the node.

Seen in flwr 1.39.0 to 1.42.0. To delete when ``push_messages`` tells of each message
whether it was taken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flwr.app import Error, Message
from flwr.serverapp import Grid

REFUSED = -1
"""Code of the error in place of a reply to a message that was refused; Flower has none."""

_REASON = (
    "Flower refused the message to its node: the node is gone, or the message is too large"
)


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


def pull(grid: Grid, nodes: Mapping[str, int]) -> Iterator[Message]:
    """Yield the replies that there are to messages under way, perhaps one of them twice."""
    # A copy, because its owner takes out what is answered.
    nodes = dict(nodes)
    for reply in grid.pull_messages(list(nodes)):
        node_id = nodes.get(reply.metadata.reply_to_message_id)
        if reply.has_error() and node_id is not None:
            # Where a node is gone, the SuperLink answers, in its own name.
            reply.metadata.__dict__["_src_node_id"] = node_id
        yield reply


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
