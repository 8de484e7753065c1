"""A site's relay between a SuperNode's state and apps, over a line that a seed breaks.

State and handlers of the SuperNode are Flower's own. Its line is one thread: it reads each
call whole, or not at all, and answers it, cuts the answer, or is late, as its place says.
"""

import errno
import hashlib
import itertools
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.retry import http_retry
from flwr.supercore.run import Run
from flwr.supercore.servicer.runtime import runtime_handlers as core_handlers
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.servicer.runtime import runtime_handlers

from fedsuite.deploy.relay import launcher, relay, shelter
from fedsuite.deploy.relay.judge import FAILED
from fedsuite.deploy.relay.ledger import LEDGER, Ledger, read_chain
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.node_tasks import NodeTask
from tests.disasters import stand_ins
from tests.disasters.forked import Child, Schedule, comes, left_over, wrong_output
from tests.disasters.stand_ins import SIGNALS, events, fault

MOST_REPLIES = 3
"""Replies that the policy lets out in the run."""

ANSWERS = (
    *("honest", "honest", "honest", "twice", "denied", "texts", "raises"),
    *("dies", "partial", "false", "forbidden", "nothing"),
)
"""What apps make of a message; all but the first two kinds must not leave."""

CALLS: Mapping[str, Any] = {
    "acquire-task": runtime_pb2.AcquireTaskRequest,
    "send-task-heartbeat": runtime_pb2.SendTaskHeartbeatRequest,
    "pull-task-input": runtime_pb2.PullTaskInputRequest,
    "pull-messages": runtime_pb2.PullAppMessagesRequest,
    "pull-object": message_pb2.PullObjectRequest,
    "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest,
    "push-messages": runtime_pb2.PushAppMessagesRequest,
    "push-object": message_pb2.PushObjectRequest,
    "push-task-output": runtime_pb2.PushTaskOutputRequest,
}
LINE_KINDS = (
    *("cut", "cut-answer", "half", "trickle", "late", "half-open", "500", "503", "401"),
    "garbage",
)
MOMENTS = ("started", "pulled", "begun", "noted", "pushed", "ended")
DISK_KINDS = ("full", "eio", "torn", "kill", "term")
LINES_OF = {
    "honest": ("reply", "sent"),
    "twice": ("request", "reply", "sent"),
    "raises": ("error", "sent"),
    "forbidden": ("request", "refused"),
    "false": ("request", "refused"),
}
"""Lines of the ledger by what an app makes of a message."""

_SECRET = "CANARY-of-one-row"
_RUN, _BUNDLE = 77, b"a bundle"
_RESET = struct.pack("ii", 1, 0)


class SuperNode:
    """A SuperNode's state with Flower's handlers, and what it has seen.

    Parameters
    ----------
    folder
        Of the world.
    ledger
        The site's, as a stranger reads it while the relay writes it.
    """

    def __init__(self, folder: Path, ledger: Path) -> None:
        self.folder, self.ledger = folder, ledger
        self.number = self.pulled = 0
        self.wrong: list[str] = []
        self.replies: dict[int, list[tuple[str, str]]] = {}
        self.whole: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Start anew, as a SuperNode does together with its relay."""
        self.state = InMemoryNodeState(ObjectStoreFactory().store())
        self.state.set_node_id(1)
        run, bundle = Run.create_empty(_RUN), hashlib.sha256(_BUNDLE).hexdigest()
        run.fab_id, run.fab_version, run.fab_hash = "example/app", "1.0", bundle
        self.state.set_run_series_context(
            run.series_id, Context(_RUN, 1, {}, RecordDict(), {})
        )
        self.state.store_run(run)
        self.state.store_fab(Fab(bundle, _BUNDLE, {}))
        self.claimed = self.over = False
        self._missing: dict[str, set[str]] = {}

    def ask(self, answer: str) -> None:
        """Have a message for an app, which will make this of it."""
        self.number += 1
        self.claimed = self.over = False
        arrays = ArrayRecord({"w": Array(np.zeros(64, np.float32))})
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 0.1})})
        with flower_identity(_RUN):
            message = Message(content, 1, "train", group_id=str(self.number))
            message.metadata.__dict__["_message_id"] = message.object_id
            calls = calls_of(answer, message)
        (self.folder / "calls.json").write_text(json.dumps(calls))
        self.state.create_task(
            task_type=TaskType.CLIENT_APP,
            run_id=_RUN,
            fab_hash=hashlib.sha256(_BUNDLE).hexdigest(),
        )
        store = self.state.object_store
        store.preregister(_RUN, get_object_tree(message))
        for identity, part in get_all_nested_objects(message).items():
            store.put(identity, part.deflate())
        self.state.store_message(remove_content_from_message(message))

    def answer(self, call: str, token: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a call."""
        request: Any = CALLS[call].FromString(body)
        name = call.replace("-", "_")
        if call == "acquire-task":
            # It asks for another one: it has ended with the one that it had, or lost it.
            self.over = self.over or self.claimed
            acquired = core_handlers.acquire_task(request, self.state)
            self.claimed = self.claimed or bool(acquired.token)
            return 200, acquired.SerializeToString()
        task = self.state.get_task_by_token(token)
        if task is None:
            return 401, b""
        if call == "push-messages":
            self.judge(request)
        handlers = core_handlers if call == "send-task-heartbeat" else runtime_handlers
        try:
            answered: Any = getattr(handlers, name)(request, self.state, task)
        except Exception:
            return 500, b"{}"
        if call == "pull-messages" and answered.messages_list:
            self.pulled = int(answered.messages_list[0].metadata.group_id)
        if call == "push-messages":
            root = request.message_object_trees[0].object_id
            self._missing[root] = set(answered.objects_to_push)
        for root, missing in self._missing.items():
            if call == "push-object" and answered.stored:
                missing.discard(request.object_id)
            self.whole |= set() if missing else {root}
        self.over = self.over or call == "push-task-output"
        return 200, bytes(answered.SerializeToString())

    def judge(self, request: Any) -> None:
        """Compare what leaves with the ledger, as it is on the disk at this moment."""
        message, root = request.messages_list[0], request.message_object_trees[0].object_id
        # Flower's tasks do not name their message: one that was lost comes with the next.
        number = int(message.metadata.group_id)
        lines = lines_in(self.ledger)
        of_message = [x for x in lines if x.get("round") == str(number)]
        words = message.error.reason if message.HasField("error") else ""
        if words and words not in (FAILED, relay.REFUSED):
            self.wrong.append(f"leaves: an error with the words {words[:80]}")
        noted = {"refused", "error"} if words else {"reply"}
        fits = [x for x in of_message if x["event"] in noted]
        if not fits or (not words and root not in {x["reply"] for x in fits}):
            self.wrong.append(f"leaves: message {number} before its line is there")
        sent = self.replies.setdefault(number, [])
        if (root, words) not in sent:
            sent.append((root, words))


def calls_of(answer: str, message: Message) -> list[tuple[str, str]]:
    """Return the calls of an app that answers a message so, each with its body in hex."""
    metrics: dict[str, Any] = {"num-examples": 50, "loss": 0.5}
    records: dict[str, Any] = {"arrays": ArrayRecord({"w": Array(np.ones(64, np.float32))})}
    if answer == "denied":
        metrics[_SECRET] = 1.0
    if answer == "texts":
        records["hello"] = ConfigRecord({"more": _SECRET})
    records["metrics"] = MetricRecord(metrics)
    reply = Message(RecordDict(records), reply_to=message)
    if answer == "raises":
        reply = Message(Error(2, f"row 7 is {_SECRET}"), reply_to=message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    push = runtime_pb2.PushAppMessagesRequest(
        messages_list=[message_to_proto(remove_content_from_message(reply))],
        message_object_trees=[get_object_tree(reply)],
    )
    parts = get_all_nested_objects(reply).items()
    objects = [
        message_pb2.PushObjectRequest(
            object_id=identity,
            object_content=part.deflate() + (b"?" if answer == "false" else b""),
        )
        for identity, part in parts
    ]
    output = runtime_pb2.PushTaskOutputRequest(sub_status="completed")
    begins = [("pull-task-input", b""), ("pull-messages", b"")]
    pushes = [("push-messages", push.SerializeToString())] * (2 if answer == "twice" else 1)
    kept = objects[: -1 if answer == "partial" else len(objects)]
    pushes += [("push-object", one.SerializeToString()) for one in kept]
    ends = [("push-task-output", output.SerializeToString())]
    calls = {
        "dies": [*begins, pushes[0]],
        "forbidden": [*begins, *[("acquire-task", _SECRET.encode())] * 25],
        "nothing": begins,
    }.get(answer, [*begins, *pushes, *ends])
    return [(path, body.hex()) for path, body in calls]


class Line:
    """The line between a relay and its SuperNode, in one thread.

    Parameters
    ----------
    node
        Who answers.
    """

    def __init__(self, node: SuperNode) -> None:
        self.node = node
        self.carried = bytearray()
        self._counts: Counter[str] = Counter()
        self._later: list[tuple[float, socket.socket, bytes]] = []
        self._read: dict[socket.socket, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._selector.register(self._server, selectors.EVENT_READ)
        self.port = self._server.getsockname()[1]

    def turn(self) -> None:
        """Take what has come, and answer what is due."""
        for ready, _ in self._selector.select(0.01):
            end = ready.fileobj
            if end is self._server:
                near, _ = self._server.accept()
                self._read[near] = bytearray()
                self._selector.register(near, selectors.EVENT_READ)
            elif isinstance(end, socket.socket) and end in self._read:
                self._take(end)
        due = [late for late in self._later if late[0] <= time.monotonic()]
        self._later = [late for late in self._later if late not in due]
        for when, end, data in due:
            # A byte at a time: the rest comes later.
            first = data if when == 0.0 or len(data) < 2 else data[:-1]
            self._send(end, first)
            if first != data:
                self._later.append((0.0, end, data[-1:]))

    def close(self) -> None:
        """End all connections; also in a fork, for which they are not."""
        for end in [*self._read, self._server]:
            end.close()
        self._selector.close()

    def _take(self, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._drop(end)
            return
        self.carried += data
        self._read[end] += data
        head, whole, body = bytes(self._read[end]).partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines[1:])
        }
        if not whole or len(body) < int(headers.get("content-length", 0)):
            return
        self._read[end].clear()
        token = headers.get(TASK_TOKEN_HEADER.lower(), "")
        self._answer(end, lines[0].split(" ")[1].rpartition("/")[2], token, body)

    def _answer(self, end: socket.socket, call: str, token: str, body: bytes) -> None:
        node = self.node
        kind = ""
        if call != "acquire-task" or not (node.claimed or node.over):
            place = f"{call} {node.number}"
            self._counts[place] += 1
            kind = fault(node.folder, f"{place}.{self._counts[place]}")
        if kind == "cut":
            self._drop(end, struck=True)
            return
        if kind in ("500", "503", "401"):
            self._send(end, response(int(kind), b"{}"))
            return
        data = response(*node.answer(call, token, body))
        if kind == "half":
            self._send(end, data[: len(data) // 2])
        if kind in ("half", "cut-answer"):
            self._drop(end, struck=True)
        elif kind in ("late", "trickle"):
            self._later.append((time.monotonic() + 0.3, end, data))
        elif kind == "garbage":
            self._send(end, response(200, b"\xff\xff\xff"))
        elif kind != "half-open":
            self._send(end, data)

    def _send(self, end: socket.socket, data: bytes) -> None:
        try:
            end.sendall(data)
        except OSError:
            self._drop(end)

    def _drop(self, end: socket.socket, struck: bool = False) -> None:
        if self._read.pop(end, None) is None:
            return
        self._selector.unregister(end)
        if struck:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.close()


def response(status: int, body: bytes) -> bytes:
    """Return an answer of HTTP."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/protobuf\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class _Disk:
    """A ledger's file that fails at moments."""

    def __init__(self, file: Any, at: Any) -> None:
        self._file, self._at = file, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        kind = self._at(f"ledger:{json.loads(data)['event']}")
        if kind in ("full", "torn"):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            if kind == "torn":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, "No space left on device")
        count = int(self._file.write(data))
        if kind == "eio":
            raise OSError(errno.EIO, "Input/output error")
        return count


def relays(site: Path, port: int, folder: Path) -> None:
    """Be the relay's program, which meets the faults of its own moments."""
    places = {
        "TMPDIR": folder / "t",
        "FEDSUITE_PLAY": folder,
        "PYTHONPATH": folder / "fake",
    }
    os.environ.update({name: str(place) for name, place in places.items()})
    tempfile.tempdir = None
    now = ["0"]

    def at(moment: str) -> str:
        kind = fault(folder, f"{moment} {now[0]}")
        if kind in ("kill", "term", "int"):
            os.kill(os.getpid(), SIGNALS.get(kind, signal.SIGKILL))
        return kind

    def after(owner: Any, name: str, moment: str) -> None:
        plain = getattr(owner, name)

        def followed(self: Any, *arguments: Any) -> Any:
            answer = plain(self, *arguments)
            if moment == "pulled":
                now[0] = self.message.metadata.group_id
            at(moment)
            return answer

        setattr(owner, name, followed)

    begin = Ledger.__init__

    def opened(self: Any, path: Path) -> None:
        begin(self, path)
        self._file = _Disk(self._file, at)

    vars(http_retry)["exponential"] = lambda max_delay: itertools.repeat(0.02)
    # Flower's are 30 s, which a busy machine may need where nothing hangs.
    hangs = '"half-open"' in (folder / "plan.json").read_text()
    (ProtobufClient.__init__.__kwdefaults__ or {})["timeout"] = 5.0 if hangs else 120.0
    words = [sys.executable, "-P", "-S", launcher.__file__, "{line}", "0"]
    vars(relay).update(app_command=lambda *_: words, _LOOK_EVERY_S=0.04)
    type.__setattr__(Ledger, "__init__", opened)
    after(NodeTask, "pull", "pulled")
    after(shelter.Started, "begin", "begun")
    after(relay.Relay, "_reply", "noted")
    after(NodeTask, "push", "pushed")
    after(NodeTask, "end", "ended")
    after(relay.Relay, "__init__", "started")
    sys.argv = [relay.__file__, str(site), str(port)]
    runpy.run_module("fedsuite.deploy.relay", run_name="__main__")


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Leave out what Flower's handlers say of calls that were cut."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@_quiet_flower()
def play(schedule: Schedule, template: Path, folder: Path) -> list[str]:
    """Play a schedule; return what was wrong."""
    site, fake = folder / "site", folder / "fake" / "flwr" / "supernode"
    shutil.copytree(template, site)
    fake.mkdir(parents=True)
    own = str(Path(stand_ins.__file__).parent)
    (fake / "cli.py").write_text(
        f"import sys\nsys.path.insert(0, {own!r})\n"
        "from stand_ins import app as flwr_clientapp\n"
    )
    known = {path.name for path in site.iterdir()} | {LEDGER, f".{LEDGER}.lock"}
    node = SuperNode(folder, site / LEDGER)
    line = Line(node)
    wrong = node.wrong
    left = list(schedule.messages)
    before = 0

    def start() -> Child:
        def work() -> None:
            line.close()
            relays(site, line.port, folder)

        return Child(folder / "log", work)

    child = start()
    codes: list[int] = []

    def turn() -> None:
        nonlocal child, before
        line.turn()
        if child.poll() is None:
            return
        codes.append(int(child.code or 0))
        fired = sum(e[0] == "fired" for e in events(folder))
        if fired == before:
            wrong.append(f"end: by itself, code {child.code}: {child.text[-300:]}")
        before = fired
        node.over = True
        node.begin()
        node.over = node.number > 0
        child = start()

    try:
        while left and not wrong:
            count = len(codes), sum(e[0] == "fired" for e in events(folder))
            answer = left.pop(0)
            node.ask(answer)
            if not comes(lambda: node.over or wrong, turn):
                wrong.append(f"stuck: message {node.number}: {child.text[-300:]}")
            same = (len(codes), sum(e[0] == "fired" for e in events(folder))) == count
            if same and node.pulled == node.number:
                wrong.extend(wrong_answer(answer, node))
        # Before that it has nothing to end in order, and a fork may lose a signal.
        comes(
            lambda: child.text.count("relay of a") > len(codes) or child.poll() is not None,
            line.turn,
        )
        if child.poll() is None:
            os.kill(child.pid, SIGNALS.get(schedule.last, signal.SIGKILL))
        if not comes(lambda: child.poll() is not None, line.turn):
            wrong.append("stuck: it does not end by its signal")
        codes.append(int(child.code or 0))
        return [
            *wrong,
            *wrong_ledger(node, codes),
            *wrong_codes(codes, child.text),
            *wrong_output(child.text, 30 * (len(codes) + len(schedule.messages))),
            *([f"leaves: {_SECRET}"] if _SECRET.encode() in line.carried else ()),
            *left_over(folder, ("app",)),
            *(
                f"left: {path.name} in the node's folder"
                for path in site.iterdir()
                if path.name not in known | ({"apps"} if codes[-1] else set())
            ),
        ]
    finally:
        child.kill()
        line.close()


def lines_in(ledger: Path) -> list[Mapping[str, Any]]:
    """Return the lines of a ledger that can be read."""
    return [line for line in read_chain(ledger).lines if "event" in line]


def wrong_answer(answer: str, node: SuperNode) -> Iterator[str]:
    """Yield what is wrong with the reply to a message that no fault has met."""
    sent = node.replies.get(node.number, [])
    events_of = [x["event"] for x in lines_in(node.ledger)]
    may_leave = answer in ("honest", "twice") and events_of.count("reply") <= MOST_REPLIES
    if len(sent) != 1 or not {root for root, _ in sent} <= node.whole:
        yield f"answers: {len(sent)} to message {node.number} ({answer})"
    elif bool(sent[0][1]) and may_leave and events_of.count("reply") < MOST_REPLIES:
        yield f"answers: message {node.number} ({answer}) got {sent[0][1]}"
    elif not sent[0][1] and not may_leave:
        yield f"leaves: what message {node.number} ({answer}) was answered with"


def wrong_ledger(node: SuperNode, codes: list[int]) -> Iterator[str]:
    """Yield what is wrong with a ledger, once nobody writes it."""
    chain = read_chain(node.ledger)
    if chain.broken:
        yield f"ledger: line {chain.broken} does not fit the one before"
    if chain.torn and codes[-1] == 0:
        yield "ledger: half a line after an end in order"
    lines = lines_in(node.ledger)
    replies = [x for x in lines if x["event"] == "reply"]
    sent = [x["reply"] for x in lines if x["event"] == "sent"]
    for what, of in (("reply", [x["reply"] for x in replies]), ("sent", sent)):
        if len(set(of)) < len(of):
            yield f"ledger: {what} noted twice"
    if len({x["round"] for x in replies}) < len(replies):
        yield "ledger: a message judged twice"
    if len(replies) > MOST_REPLIES:
        yield f"ledger: {len(replies)} replies, {MOST_REPLIES} may leave"
    if not set(sent) <= node.whole:
        yield "ledger: sent, and not all of it was there"
    for number, answers in node.replies.items():
        if len(answers) > 1:
            yield f"answers: message {number} has {len(answers)}"


def wrong_codes(codes: list[int], text: str) -> Iterator[str]:
    """Yield what is wrong with how relays ended."""
    if odd := set(codes) - {0, 1, -signal.SIGKILL}:
        yield f"end: codes {sorted(odd)}"
    if codes.count(1) != text.count("fedsuite: error: "):
        yield f"end: {codes.count(1)} failures, and not a line for each: {text[-300:]}"
