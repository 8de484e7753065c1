"""A node of the local engine."""

from flwr.app import Context, RecordDict

from fedsuite.core.keys import Value

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
