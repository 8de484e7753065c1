"""What Flower's Grids in this process have in common."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from typing_extensions import override

from fedsuite.core.keys import Value


class GridHere(Grid):
    """A Grid whose nodes answer before :meth:`push_messages` returns.

    Parameters
    ----------
    run_id
        Id of the run.
    node_ids
        Ids of the nodes.
    """

    def __init__(self, run_id: int, node_ids: Sequence[int]) -> None:
        self._run = FlowerRun.create_empty(run_id=run_id)
        self._node_ids = node_ids
        self._replies: dict[str, Message] = {}

    @abstractmethod
    def _answers(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Give messages their ids; yield the replies, in any order."""

    @override
    def set_run(self, run: FlowerRun) -> None:
        self._run = run

    @property
    @override
    def run(self) -> FlowerRun:
        return self._run

    @override
    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    @override
    def get_node_ids(self) -> list[int]:
        return list(self._node_ids)

    @override
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        for reply in self._answers(pushed):
            self._replies[reply.metadata.reply_to_message_id] = reply
        # In the order of the messages, not of the replies.
        return [message.metadata.message_id for message in pushed]

    @override
    def pull_messages(  # type: ignore[override]
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> list[Message]:
        # Flower 1.43 has the first name, and takes all replies without ids; the versions
        # before have the second.
        ids = reply_to_message_ids if message_ids is None else message_ids
        wanted = list(self._replies) if ids is None else list(ids)
        return [self._replies.pop(key) for key in wanted if key in self._replies]


FIRST_NODE = 1000
"""Id of the first node."""


def node_context(
    node_id: int,
    num_nodes: int,
    run_config: dict[str, Value],
    state: RecordDict | None = None,
) -> Context:
    """Return a ClientApp's context on a node of a local grid."""
    partition = node_id - FIRST_NODE
    return Context(
        run_id=1,
        node_id=node_id,
        node_config={"partition-id": partition, "num-partitions": num_nodes},
        state=state if state is not None else RecordDict(),
        run_config=run_config,
    )
