"""A node of the local engine: its context, and a ClientApp's reply there."""

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedsuite.core.keys import Value

FIRST_NODE = 1000
"""Id of the first node."""


def answered(app: ClientApp, message: Message, context: Context) -> Message:
    """Return an app's reply to a message, an error if it fails."""
    try:
        return app(message, context)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        return Message(failure, reply_to=message)


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
