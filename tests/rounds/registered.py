"""Nodes with registered names and keys."""

from collections.abc import Iterable

from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from fedsuite.engines.local import LocalGrid


class Registered(LocalGrid):
    """A local grid whose nodes have registered names and keys."""

    def __init__(self, app: ClientApp, keys: dict[int, tuple[str, bytes]]) -> None:
        super().__init__(app, len(keys))
        self.keys = keys

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node_id, name=name, public_key=key)
            for node_id, (name, key) in self.keys.items()
        ]
