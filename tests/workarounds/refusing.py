"""Grids that refuse messages, each in one of Flower's ways."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from fedsuite.workarounds.prompt_grid import PromptGrid
from tests.helpers import TamperingGrid, mark

WAYS = ("empty-id", "none", "left-out", "empty-list", "copies-left-out")
"""The ways: ``""`` as a SuperLink; ``None``, as Flower's own comment says; left out as in
Flower's simulation; ``[]`` for all, as over HTTP for one that is too large; left out by a
Grid that sends copies, so that the messages do not learn their ids."""


class RefusingGrid(TamperingGrid):
    """A grid that refuses messages to some nodes while it is told to."""

    def __init__(
        self, *args: Any, way: str = "empty-id", refused: Iterable[int] = (), **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self.way = way
        self.refused = set(refused)
        self.pulls = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        too_large = any(m.metadata.dst_node_id in self.refused for m in pushed)
        if self.way == "empty-list" and too_large:
            return []
        ids: list[Any] = []
        for message in pushed:
            if message.metadata.dst_node_id not in self.refused:
                ids += super().push_messages([message])
            elif self.way in ("empty-id", "none"):
                # A SuperLink's Grid gives an id to all, before it sends any.
                mark(message, message_id=f"refused-{id(message)}")
                ids.append("" if self.way == "empty-id" else None)
            elif self.way == "left-out":
                mark(message, message_id=f"refused-{id(message)}")
        if self.way == "copies-left-out":
            for message in pushed:
                mark(message, message_id="")
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.pulls += 1
        asked = list(message_ids)
        assert all(asked) and len(set(asked)) == len(asked)
        return super().pull_messages(asked)


class PromptRefusingGrid(PromptGrid):
    """What fedsuite's ServerApp puts around a grid."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.inner = RefusingGrid(*args, **named)
        super().__init__(self.inner, shortest_pause=0.001)
