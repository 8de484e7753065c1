"""What Flower checks of a node's requests, and what it does not, on the wire.

``docs/how-to/flower_defects.md`` has the findings. The test plays two registered nodes
against a real SuperLink, with Flower's own client and its own signatures.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_push_object_fn_protobuf,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedsuite.deploy.folders import NodeFolder
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.flower import flower_version
from fedsuite.engines.processes import World
from fedsuite.engines.staging import stage_app
from fedsuite.workarounds.identity import flower_identity
from tests.workarounds.wire import Fleet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("FEDSUITE_FAULTS") != "all", reason="minutes: `make faults` runs it"
    ),
]

SERVER_APP = """
import json, time
from pathlib import Path
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.1)
    messages = [Message(RecordDict(), node, "query") for node in nodes]
    replies = grid.send_and_receive(messages, timeout=120)
    found = [[r.metadata.src_node_id, r.content["said"]["by"]] for r in replies]
    Path(str(context.run_config["report"])).write_text(json.dumps(found))
"""


class OnTheWire:
    """A node that says what it likes, signed with its own key."""

    def __init__(self, folder: NodeFolder) -> None:
        key: Any = load_ssh_private_key((folder.path / "key").read_bytes(), None)
        self.fleet = Fleet(folder.superlink, folder.path / "ca.crt", key)
        self.client = self.fleet.client
        public = public_key_to_bytes(key.public_key())
        request = fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=30)
        self.node = Node(node_id=self.client.ActivateNode(request).node_id)

    def pull(self) -> Message:
        request = fleet_pb2.PullMessagesRequest(node=self.node)
        deadline = time.monotonic() + 120
        while not (found := self.client.PullMessages(request).messages_list):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return message_from_proto(found[0])

    def answer(self, message: Message, by: str) -> bool:
        """Push a reply to a message, whoever it went to; return whether it is taken."""
        with flower_identity():
            content = RecordDict({"said": ConfigRecord({"by": by})})
            reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        request = fleet_pb2.PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[0.1],
        )
        try:
            told = self.client.PushMessages(request)
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 403
            return False
        push = make_push_object_fn_protobuf(
            self.client.PushObject, self.node, message.metadata.run_id, told.session_id
        )
        for key in told.objects_to_push:
            push(key, objects[key].deflate())
        return bool(told.objects_to_push)


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[LocalFederation, OnTheWire, OnTheWire]]:
    with World("wire_app") as world:
        federation = LocalFederation(world, folder / "federation", 2)
        federation.start_superlink()
        first, second = map(OnTheWire, federation.nodes)
        yield federation, first, second


def test_replay_and_a_node_that_answers_for_another(tmp_path: Path) -> None:
    package = tmp_path / "wire_app"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "server_app.py").write_text(SERVER_APP)
    (package / "client_app.py").write_text(
        "from flwr.clientapp import ClientApp\napp = ClientApp()\n"
    )
    report = tmp_path / "report.json"
    with two_nodes(tmp_path) as (federation, first, second):
        beat = "SendNodeHeartbeat"
        own, other = (
            heartbeat_pb2.SendNodeHeartbeatRequest(node=n.node, heartbeat_interval=30)
            for n in (second, first)
        )
        # A node that names another one in its request is refused.
        assert not second.fleet.takes(beat, other)
        # A request that was recorded counts again, for five minutes: nothing is used once.
        assert first.fleet.takes(beat, other)
        assert first.fleet.takes_again(beat, other)
        # It is of no use for another node.
        assert not first.fleet.takes_again(beat, own)
        # The signature is of the time alone: it holds for another request of that node.
        gone = fleet_pb2.DeactivateNodeRequest(node_id=first.node.node_id)
        assert first.fleet.takes_again("DeactivateNode", gone)
        first = OnTheWire(federation.nodes[0])
        config: dict[str, Any] = {"report": str(report)}
        app = stage_app(tmp_path / "app", config, package=package)
        run = threading.Thread(target=federation.run_app, args=(app, lambda line: None))
        run.start()
        asked, mine = first.pull(), second.pull()
        # Up to Flower 1.42 who knows a message's number may answer it in another's name.
        own_name_alone = flower_version() >= (1, 43)
        assert second.answer(asked, "second") is not own_name_alone
        # The first answer counts.
        assert first.answer(asked, "first") is own_name_alone
        assert second.answer(mine, "second")
        assert not second.answer(mine, "second, once more")
        run.join(120)
    found = dict(json.loads(report.read_text()))
    by = "first" if own_name_alone else "second"
    assert found == {first.node.node_id: by, second.node.node_id: "second"}
