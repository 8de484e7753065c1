"""Flower's Grid, with the arrays of each record sent as one.

When it can be deleted: :mod:`fedsuite.workarounds.packed` says so.
"""

from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from fedsuite.workarounds.packed import Packing, pack, unpack_reply
from fedsuite.workarounds.prompt_grid import SHORTEST_PAUSE_IN_MEMORY_S, PromptGrid


class PackedGrid(PromptGrid):
    """A Grid whose messages are packed, and whose replies may be.

    How: :mod:`fedsuite.workarounds.packed`.

    The ClientApps at the other end need :func:`fedsuite.workarounds.packed.packing_mod`.

    Parameters
    ----------
    grid
        What sends and receives.
    """

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack messages and send them; return their ids."""
        # The records stand in it, so that none is another by the time it is looked for.
        done: Packing = {}
        return super().push_messages([_packed(message, done) for message in messages])

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Yield the replies that have come to these messages, each once, unpacked."""
        for reply in super().pull_messages(message_ids):
            if reply.has_content():
                reply.content = unpack_reply(reply.content)
            yield reply


def grid_for(grid: Grid) -> PromptGrid:
    """Return what a ServerApp of fedsuite sends with, on a Grid that Flower hands it.

    Flower's simulation hands arrays over in memory, where packing only costs.
    """
    # Loads much of Flower, which a ServerApp has loaded already and others do not need.
    from flwr.superlink.grid import InMemoryGrid

    if isinstance(grid, InMemoryGrid):
        return PromptGrid(grid, SHORTEST_PAUSE_IN_MEMORY_S)
    return PackedGrid(grid)


def _packed(message: Message, done: Packing) -> Message:
    if not message.has_content():
        return message
    metadata = message.metadata
    return Message(
        pack(message.content, done),
        metadata.dst_node_id,
        metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )
