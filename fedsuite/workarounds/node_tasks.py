"""A SuperNode's tasks, as its SuperExec and its ClientApps see them.

A relay (:mod:`fedsuite.deploy.relay`) stands between a SuperNode and the ClientApps. To
the SuperNode it is a SuperExec that claims tasks, and a ClientApp that pulls a message and
pushes a reply. To the app it is the SuperNode, in eight calls. Flower has no public name
for either side.

Seen in flwr 1.39, 1.41 and 1.42. To delete when Flower lets a site decide what leaves it.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.common.serde import context_from_proto, message_from_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushTaskOutputRequest,
    PushTaskOutputResponse,
    SendTaskHeartbeatResponse,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    validate_object_content,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import push_message

_MOST_OBJECTS = 100_000
"""Objects of a reply: an array of a network is two or three."""

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class UnreadableError(Exception):
    """A reply that is no whole message."""


class Tasks:
    """Claims a SuperNode's tasks, those of ClientApps alone.

    Parameters
    ----------
    address
        ``HOST:PORT`` of the SuperNode's runtime API.
    secret
        File of the secret that its SuperExec signs with.
    """

    def __init__(self, address: str, secret: Path) -> None:
        self.address = address
        signed = SuperExecAuthHttpInterceptor(
            master_secret=secret.read_bytes().strip(),
            protected_methods=frozenset({_ACQUIRE}),
        )
        self._client = _client(address, "SuperExec", signed)

    def claim(self) -> "NodeTask | None":
        """Return the next task, None if none waits."""
        # An AgentApp, a model or a connector would run outside the relay.
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        claimed = self._client.AcquireTask(wanted)
        if not claimed.HasField("task") or not claimed.token:
            return None
        token = RuntimeTokenHttpInterceptor(claimed.token)
        return NodeTask(_client(self.address, "flwr-clientapp", token))


class NodeTask:
    """One message that the SuperNode hands to an app, and its one reply.

    Its token stays in this process.
    """

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client = client
        beat = make_task_heartbeat_fn_http(client)

        def lasting() -> bool:
            try:
                return beat()
            except Exception:
                # Flower's thread would end by any other answer, and the task with it.
                return False

        self._heart = HeartbeatSender(lasting)
        self._heart.start()

    def pull(self) -> None:
        """Fetch the message and all that belongs to it.

        Raises
        ------
        UnreadableError
            If the bundle is not the one that its hash names, or no message came.
        """
        self.input = self._client.PullTaskInput(PullTaskInputRequest())
        self.messages = self._client.PullMessages(PullAppMessagesRequest())
        if not self.messages.messages_list:
            raise UnreadableError("the SuperNode has no message for its task")
        tree = self.messages.message_object_trees[0]
        run_id, node = self.input.run.run_id, Node(node_id=self.input.context.node_id)
        self.objects: Mapping[str, bytes] = pull_objects(
            [part.object_id for part in iterate_object_tree(tree)],
            make_pull_object_fn_protobuf(self._client.PullObject, node, run_id),
        )
        confirm = make_confirm_message_received_fn_protobuf(
            self._client.ConfirmMessageReceived, node, run_id
        )
        confirm(tree.object_id)
        self.message: Message = message_from_proto(self.messages.messages_list[0])
        whole = inflate_object_from_contents(
            tree.object_id, dict(self.objects), keep_object_contents=True
        )
        assert isinstance(whole, Message)
        self.question: RecordDict = whole.content
        bundle = self.input.fab
        if hashlib.sha256(bundle.content).hexdigest() != bundle.hash_str:
            raise UnreadableError("the bundle is not the one that its hash names")

    @property
    def run_id(self) -> str:
        """Flower's number of the run."""
        return str(self.input.run.run_id)

    @property
    def app(self) -> tuple[str, str, str]:
        """Hash of the bundle, and by its own word ``publisher/name`` and version."""
        run = self.input.run
        return self.input.fab.hash_str, run.fab_id, run.fab_version

    @property
    def context(self) -> Context:
        """The app's context, as the SuperNode has it."""
        return context_from_proto(self.input.context)

    def push(self, reply: Message) -> str:
        """Send the reply to the SuperNode."""
        push_message(self._client, reply, self.context)
        return str(reply.object_id)

    def end(self, answers: "AppCalls | None") -> None:
        """Tell the SuperNode that the task has ended; of the context keep the app's state.

        Parameters
        ----------
        answers
            What the app said; None if nothing of it counts.
        """
        context = None
        if answers is not None and answers.output is not None:
            output = answers.output
            if output.HasField("context"):
                # The node's configuration and the run's stay what they were.
                context = ProtoContext()
                context.CopyFrom(self.input.context)
                context.state.CopyFrom(output.context.state)
        status = "failed" if answers is None else "completed"
        try:
            self._client.PushTaskOutput(
                PushTaskOutputRequest(context=context, sub_status=status, details="")
            )
        finally:
            self._heart.stop()
            self._client.close()


@dataclass
class AppCalls:
    """Answers an app's calls from memory, and keeps the reply that it pushes.

    Parameters
    ----------
    task
        The task, pulled.
    most_bytes
        Bytes that the app may push.
    num_refused
        Calls that no app may make, so far.
    """

    task: NodeTask
    most_bytes: int
    num_refused: int = 0
    output: "PushTaskOutputRequest | None" = None
    _pushed: "PushAppMessagesRequest | None" = None
    _wanted: set[str] = field(default_factory=set)
    _objects: dict[str, bytes] = field(default_factory=dict)
    _size: int = 0
    _is_closed: bool = False

    def close(self) -> None:
        """Answer no call any more."""
        self._is_closed = True

    def answer(self, path: str, body: bytes) -> bytes | None:
        """Return the answer to a call, None for one that no app may make.

        Parameters
        ----------
        path
            Its path, such as ``/v1/runtime/pull-object``.
        body
            What the app sent; it may be anything.
        """
        handlers: dict[str, Callable[[bytes], Any]] = {
            "send-task-heartbeat": self._heartbeat,
            "pull-task-input": lambda _: self.task.input,
            "pull-messages": lambda _: self.task.messages,
            "pull-object": self._pull_object,
            "confirm-message-received": self._confirm,
            "push-messages": self._push_messages,
            "push-object": self._push_object,
            "push-task-output": self._push_output,
        }
        prefix, _, name = path.rpartition("/")
        handler = handlers.get(name) if prefix == "/v1/runtime" else None
        answer = None if handler is None or self._is_closed else handler(body)
        return None if answer is None else bytes(answer.SerializeToString())

    def reply(self) -> RecordDict | None:
        """Return the pushed content, None of an error or of no reply.

        Raises
        ------
        UnreadableError
            If what was pushed is no message.
        """
        if self._pushed is None or self._pushed.messages_list[0].HasField("error"):
            return None
        if self._wanted - self._objects.keys():
            raise UnreadableError("parts of the reply are missing")
        root = self._pushed.message_object_trees[0].object_id
        try:
            whole = inflate_object_from_contents(root, dict(self._objects))
        except Exception as error:
            # Hostile bytes may raise anything.
            raise UnreadableError(type(error).__name__) from None
        if not isinstance(whole, Message) or not isinstance(whole.content, RecordDict):
            raise UnreadableError("it is no message")
        return whole.content

    def error(self) -> str:
        """Return what an app's error says, for the site's own log; empty of none."""
        if self._pushed is None:
            return ""
        message = self._pushed.messages_list[0]
        return str(message.error.reason) if message.HasField("error") else ""

    def _heartbeat(self, body: bytes) -> object:
        return SendTaskHeartbeatResponse(success=True)

    def _pull_object(self, body: bytes) -> object:
        wanted = PullObjectRequest.FromString(body).object_id
        content = self.task.objects.get(wanted)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content or b"",
        )

    def _confirm(self, body: bytes) -> object:
        return ConfirmMessageReceivedResponse()

    def _push_messages(self, body: bytes) -> object:
        request = PushAppMessagesRequest.FromString(body)
        is_one = len(request.messages_list) == len(request.message_object_trees) == 1
        if self._pushed is not None or not is_one:
            # One reply for a message.
            return None
        tree = request.message_object_trees[0]
        identities = {part.object_id for part in iterate_object_tree(tree)}
        if len(identities) > _MOST_OBJECTS:
            return None
        self._pushed, self._wanted = request, identities
        return PushAppMessagesResponse(
            message_ids=["x"], objects_to_push=identities, session_id="x"
        )

    def _push_object(self, body: bytes) -> object:
        request = PushObjectRequest.FromString(body)
        content = request.object_content
        self._size += len(content)
        is_named = hashlib.sha256(content).hexdigest() == request.object_id
        if request.object_id not in self._wanted or not is_named:
            return None
        if self._size > self.most_bytes:
            return None
        validate_object_content(content)
        self._objects[request.object_id] = content
        return PushObjectResponse(stored=True)

    def _push_output(self, body: bytes) -> object:
        self.output = PushTaskOutputRequest.FromString(body)
        return PushTaskOutputResponse()


def _client(address: str, component: str, *others: Any) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), *others],
        retry_invoker=make_simple_http_retry_invoker(),
    )
