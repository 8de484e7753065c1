"""A Flower Grid that packs the arrays of each record into one.

:mod:`fedsuite.workarounds.packed` says when to delete it.
"""

from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid
from typing_extensions import override

from fedsuite.workarounds.identity import set_message_id
from fedsuite.workarounds.packed import Packing, pack, unpack_reply
from fedsuite.workarounds.prompt_grid import SHORTEST_PAUSE_IN_MEMORY_S, PromptGrid


class PackedGrid(PromptGrid):
    """A Grid of packed messages; see :mod:`fedsuite.workarounds.packed`.

    The ClientApps at the other end need :func:`fedsuite.workarounds.packed.packing_mod`.

    Parameters
    ----------
    grid
        Grid that sends and receives.
    """

    @override
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        # It also holds the records, so that no identity is reused meanwhile.
        done: Packing = {}
        sent = list(messages)
        packed = [_packed(message, done) for message in sent]
        ids = list(super().push_messages(packed))
        for message, wrapped in zip(sent, packed, strict=True):
            set_message_id(message, wrapped.metadata.message_id)
        return ids

    @override
    def pull_messages(  # type: ignore[override]
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> Iterable[Message]:
        for reply in super().pull_messages(reply_to_message_ids, message_ids=message_ids):
            if reply.has_content():
                reply.content = unpack_reply(reply.content)
            yield reply


def grid_for(grid: Grid) -> PromptGrid:
    """Return the Grid of a fedsuite ServerApp around Flower's Grid.

    Flower's simulation hands arrays over in memory, so packing would only cost time.
    """
    # Imported late, because it loads much of Flower, which only ServerApps need.
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
