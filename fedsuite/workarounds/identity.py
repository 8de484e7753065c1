"""Identity for Flower's messages in a process that Flower did not start.

``Message(...)`` outside a run of Flower raises "TaskIdentity.run_id is not set" (seen in
flwr 1.39, 1.41 and 1.42). To delete when messages need no run, or when a public name sets
the identity and the id of a message.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1
"""Node id of the requests' sender."""


@contextmanager
def flower_identity(run_id: int = 1) -> Iterator[None]:
    """Set the identity for Flower's messages inside the block."""
    names = ("_run_id", "_node_id", "_task_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    TaskIdentity.run_id, TaskIdentity.node_id = run_id, SERVER_NODE
    TaskIdentity.task_id = 1
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message the id that Flower's own grid would give it."""
    message.metadata.__dict__["_message_id"] = message_id
