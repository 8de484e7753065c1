"""The identity that Flower's messages need, in a process that Flower did not start.

``Message(...)`` outside a run of Flower raises "TaskIdentity.run_id is not set" (seen in
flwr 1.39.0 and 1.41.0). To delete: when messages can be made without a run, or when their
identity can be given by a public name.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1
"""The node id of who sends requests."""


@contextmanager
def flower_identity() -> Iterator[None]:
    """Give this process the identity that Flower's messages need, and take it back."""
    names = ("_run_id", "_node_id", "_task_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER_NODE, 1
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)
