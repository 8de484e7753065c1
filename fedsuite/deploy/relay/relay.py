"""Stands between a site's SuperNode and its apps, in place of a SuperExec.

    python -P -m fedsuite.deploy.relay NODE_FOLDER PORT

It claims the messages for ClientApps, lends each to an app in a shelter, judges the app's
reply by the site's policy, writes the ledger, and only then pushes what may leave. No call
of an app is passed on.
"""

import logging
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Error, Message

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.output import print_line
from fedsuite.deploy.folders import NODE_KEY, POLICY, SECRET, NodeFolder
from fedsuite.deploy.relay import ledger as ledgers
from fedsuite.deploy.relay.judge import FAILED, Denied, Used, judged
from fedsuite.deploy.relay.ledger import LEDGER, Ledger
from fedsuite.deploy.relay.policy import Policy, allowed_hours, matches
from fedsuite.deploy.relay.shelter import (
    Forks,
    Started,
    app_command,
    app_environment,
)
from fedsuite.rounds.secure_rules import masks_demanded
from fedsuite.workarounds.node_tasks import AppCalls, NodeTask, Tasks, UnreadableError

REFUSED = "refused by the site's policy"
"""What the server hears of a reply that stays here."""

_CODE_FAILED, _CODE_REFUSED = 2, 6
"""Flower's codes of an app that raised, and of an unmet precondition."""

APPS = "apps"
"""Folder of a node in which each app has a folder of its own for as long as it runs."""

MOST_REFUSED = 20
"""Calls that no app may make, of one message, that end it: each is a line on the disk."""

_LOOK_EVERY_S = 0.2
_SLACK = 1.5
"""Times as many bytes as the policy's megabytes are read: names and forms need some."""


class Relay:
    """Answers a SuperNode's messages by apps in shelters.

    Parameters
    ----------
    node
        The node's folder.
    policy
        Its rules.
    ledger
        Where it notes what leaves.
    tasks
        The SuperNode's tasks.
    environment
        The node's environment.
    """

    def __init__(
        self,
        node: NodeFolder,
        policy: Policy,
        ledger: Ledger,
        tasks: Tasks,
        environment: Mapping[str, str],
    ) -> None:
        self.policy = policy
        self.ledger = ledger
        self._tasks = tasks
        self._folder = node.path / APPS
        # What a killed relay's apps have left.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700)
        command = app_command(policy, node, environment)
        seen = app_environment(policy, environment)
        self._forks: Forks | None = None
        self._start: Callable[[], Started] = partial(Started, command, seen, self._folder)
        if policy.shelter.shelter == "landlock":
            self._forks = Forks(command, seen, self._folder)
            self._start = self._forks.start
        self._hours = allowed_hours(policy.limits.hours)
        self._key_file = node.path / NODE_KEY
        self._demand: Literal["", "masked"] = (
            "masked" if masks_demanded(node.config, environment) else ""
        )
        self._random = np.random.default_rng()
        self._spare = self._start()
        self._at_work: list[Started] = []
        ledger.write(ledgers.STARTED, policy=policy.digest, server=node.superlink)

    def serve(self) -> None:
        """Answer messages until the process is stopped."""
        while True:
            try:
                task = self._tasks.claim() if self._is_open() else None
            except Exception as error:
                words = one_line(repr(error))
                raise RunError(f"the SuperNode takes no claim: {words}") from error
            if task is None:
                time.sleep(_LOOK_EVERY_S)
                continue
            try:
                self.answer(task)
            except RunError:
                # What the ledger cannot hold may not leave.
                raise
            except Exception as error:
                print_line(f"relay: a message failed: {one_line(repr(error))}")

    def close(self) -> None:
        """End the processes of apps, and delete their folders."""
        for app in (self._spare, *self._at_work):
            app.end()
        if self._forks is not None:
            self._forks.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def answer(self, task: NodeTask) -> None:
        """Answer one message, and tell the SuperNode that its task has ended."""
        calls: AppCalls | None = None
        keeps = False
        try:
            try:
                task.pull()
            except UnreadableError as error:
                self.ledger.write(ledgers.REFUSED, rule="form", why=str(error))
                raise
            metadata = task.message.metadata
            identity, name, version = task.app
            line: dict[str, Any] = {
                **{"run": task.run_id, "app": identity, "app-name": name},
                **{"app-version": version, "type": metadata.message_type},
                **{"round": metadata.group_id, "policy": self.policy.digest},
            }
            try:
                self._check_app(identity, name, version)
                calls = AppCalls(task, self._most_bytes())
                self._lend(calls, line)
                reply, keeps = self._reply(task, calls, line)
            except Denied as denied:
                rule = f": {denied.rule}" if self.policy.leave.reason else ""
                reply = self._error(task, _CODE_REFUSED, f"{REFUSED}{rule}")
                why = one_line(denied.why)
                print_line(f"relay: nothing has left, by {POLICY}: {denied.rule}: {why}")
                self.ledger.write(ledgers.REFUSED, **line, rule=denied.rule, why=why)
            identity = task.push(reply)
            self.ledger.write(ledgers.SENT, run=task.run_id, reply=identity)
        finally:
            task.end(calls if keeps else None)

    def _reply(
        self, task: NodeTask, calls: AppCalls, line: Mapping[str, Any]
    ) -> tuple[Message, bool]:
        """Return what leaves, noted in the ledger, and whether the app's state stays."""
        try:
            content = calls.reply()
        except UnreadableError as error:
            raise Denied("form", str(error)) from None
        if content is None:
            if reason := calls.error():
                print_line(f"relay: the app failed: {one_line(reason, 2_000)}")
            self.ledger.write(ledgers.ERROR, **line, told=FAILED)
            return self._error(task, _CODE_FAILED, FAILED), False
        outcome = judged(
            content,
            task.question,
            task.message.metadata.message_type,
            self.policy,
            Used(self.ledger.day_bytes(), self.ledger.run_replies(task.run_id)),
            self._random,
            self._demand,
            self._key_file,
        )
        reply = Message(outcome.content, reply_to=task.message)
        # The reply's hash is of all that leaves; Flower calls it by that.
        identity = reply.object_id
        self.ledger.write(
            ledgers.REPLY,
            **line,
            reply=identity,
            bytes=outcome.num_bytes,
            norm=_number(outcome.norm),
            **{"norm-left": _number(outcome.norm_left)},
            withheld=list(outcome.withheld),
            masked=outcome.masked,
            records=outcome.records,
            **self._changes(),
        )
        return reply, True

    def _changes(self) -> dict[str, float]:
        """Return what the policy does to arrays, where it does anything."""
        change = self.policy.change
        return {
            name: value
            for name, value in change.values().items()
            if value != change.unchanged()[name]
        }

    def _error(self, task: NodeTask, code: int, reason: str) -> Message:
        return Message(Error(code, reason), reply_to=task.message)

    def _check_app(self, identity: str, name: str, version: str) -> None:
        known = (f"sha256:{identity}", name, f"{name}=={version}")
        if not any(matches(word, self.policy.apps.allow) for word in known):
            raise Denied("apps.allow", f"{name}=={version}, sha256:{identity}")

    def _lend(self, calls: AppCalls, line: Mapping[str, Any]) -> None:
        """Let an app work on the message, and answer its calls, until its process ends."""
        app = self._spare
        self._at_work = [app]
        try:
            try:
                app.wait()
            except OSError as error:
                raise Denied("shelter.shelter", one_line(error)) from None
            with self._answering(app.line, calls, line):
                app.begin()
                ends = time.monotonic() + self.policy.limits.seconds
                # Its last call is the task's output; the process needs seconds to end.
                while app.is_alive() and calls.output is None:
                    if time.monotonic() > ends:
                        raise Denied("limits.seconds", "the app took too long")
                    if calls.num_refused >= MOST_REFUSED:
                        raise Denied("calls", "the app makes calls that no app may make")
                    time.sleep(_LOOK_EVERY_S / 10)
        finally:
            self._at_work = []
            app.end()
            # It loads what apps need while the reply is judged, and while nothing happens.
            self._spare = self._start()

    @contextmanager
    def _answering(
        self, app: socket.socket, calls: AppCalls, line: Mapping[str, Any]
    ) -> Iterator[None]:
        left, lock, ledger = self._most_bytes(), threading.Lock(), self.ledger

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                nonlocal left
                length = self.headers.get("content-length", "")
                is_number = re.fullmatch("[0-9]{1,18}", length) is not None
                size = int(length) if is_number else 0
                with lock:
                    # Of all bodies together: many at once would fill the memory.
                    left -= size
                    fits = is_number and left >= 0
                if not fits:
                    self.close_connection = True
                    self._send(413, b"")
                    return
                body = self.rfile.read(size)
                answer = None
                with lock:
                    # Hostile bytes may raise anything.
                    with suppress(Exception):
                        answer = calls.answer(self.path, body)
                    if answer is None:
                        calls.num_refused += 1
                    if answer is None and calls.num_refused <= MOST_REFUSED:
                        path = one_line(self.path, 100)
                        ledger.write(ledgers.REQUEST, **line, path=path)
                self._send(200 if answer is not None else 403, answer or b"")

            def _send(self, status: int, body: bytes) -> None:
                self.send_response_only(status)
                self.send_header("content-type", "application/protobuf")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = _Calls(app, Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            # A call that is still at work changes nothing any more.
            with lock:
                calls.close()

    def _most_bytes(self) -> int:
        return int(_SLACK * self.policy.leave.reply_megabytes * 1e6) + 2**20

    def _is_open(self) -> bool:
        return datetime.now(UTC).hour in self._hours


class _Calls(ThreadingHTTPServer):
    """Serves the connections that come in over an app's line, each as a descriptor."""

    daemon_threads = True

    def __init__(self, line: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = line

    def handle_error(self, *_: object) -> None:
        """Say nothing of an app that was ended in the middle of a call."""

    def get_request(self) -> tuple[socket.socket, str]:
        _, descriptors, _, _ = socket.recv_fds(self.socket, 1, 1)
        for other in descriptors[1:]:
            os.close(other)
        if not descriptors:
            # The app has ended, or sends something else.
            time.sleep(_LOOK_EVERY_S / 10)
            raise OSError
        try:
            return socket.socket(fileno=descriptors[0]), ""
        except OSError:
            os.close(descriptors[0])
            raise


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def serve(folder: str, port: str) -> None:
    """Serve a node's SuperNode until a signal comes."""
    ending = ExitStack()

    def stop(*_: object) -> None:
        # At once: the SuperNode may be gone, and a torn line of the ledger is found.
        ending.close()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    # Flower raises it once a SuperNode has given a task up.
    signal.signal(signal.SIGINT, stop)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    node = NodeFolder.load(Path(folder))
    policy = Policy.load(node.path / POLICY)
    with Ledger(node.path / LEDGER) as ledger:
        tasks = Tasks(f"127.0.0.1:{port}", node.path / SECRET)
        # Also what the beginning of a relay leaves when a signal comes into it.
        ending.callback(shutil.rmtree, node.path / APPS, ignore_errors=True)
        relay = Relay(node, policy, ledger, tasks, os.environ)
        ending.callback(relay.close)
        shelter = policy.shelter.shelter
        print_line(f"relay of {node.name}: policy {policy.digest[:12]}, shelter {shelter}")
        with ending:
            relay.serve()
