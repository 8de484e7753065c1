"""A worker process, which answers messages until its parent closes the line.

    python -m fedsuite.engines.pool.child LINE SHARED DOWN DOWN UP UP UP UP

The arguments are open file descriptors of the line to the parent and of the arenas.
Messages are JSON with arrays in the arenas. Two messages may be under way at once, one in
work and one waiting. Each message has its own arena down. The parent names each reply's
arena up, and reads the reply there, while nobody writes to the arena.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp
from typing_extensions import override

from fedsuite.core.errors import FedsuiteError, RunError
from fedsuite.core.logs import configure_logs, log_scope
from fedsuite.engines.grid import node_context
from fedsuite.engines.pool.arena import Arena, Arenas, up_arena
from fedsuite.engines.pool.packing import (
    hear_arrays,
    hear_content,
    tell_arrays,
    tell_content,
)
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import Arrays
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.training.app import Failures, reply_of_error
from fedsuite.workarounds.identity import flower_identity, set_message_id


class CarriedStore:
    """Store of clients' states, which travel with messages; the parent keeps them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Arrays] = {}
        self._missing: dict[tuple[int, str], str] = {}
        self.saved: list[tuple[int, str, Arrays, set[str]]] = []

    def begin(self, states: list[Any], arenas: Arenas) -> None:
        """Replace the states by those of a message."""
        self._known, self._missing, self.saved = {}, {}, []
        for client_id, version, found in states:
            if isinstance(found, str):
                self._missing[client_id, version] = found
            else:
                self._known[client_id, version] = hear_arrays(found, arenas.get)

    def load(self, client_id: int, version: str) -> Arrays:
        """Return a version that came with the message."""
        key = client_id, version
        if key not in self._known:
            reason = self._missing.get(key, f"client {client_id}: no state {version} came")
            raise RunError(reason)
        return self._known[key]

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        """Keep a version until the reply is packed."""
        self._known[client_id, version] = arrays
        self.saved.append((client_id, version, arrays, needed))


class CarriedFailures(Failures):
    """Errors in clients' code, which the parent logs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    @override
    def tell(self, place: str, client_id: int, error: Exception) -> None:
        if self._is_new(place):
            words = "".join(traceback.format_exception(error)).rstrip()
            self.found.append((place, f"client {client_id} failed\n{words}"))


def serve(line: Connection, arenas: Arenas) -> None:
    """Answer messages until the line is closed."""
    setup = json.loads(line.recv_bytes())
    experiment = Experiment.from_values(setup["experiment"])
    config, store = dict(experiment.values), CarriedStore()
    failures = CarriedFailures()
    app: ClientApp | None = None
    with log_scope(run=setup["run"]), flower_identity():
        while True:
            told = json.loads(line.recv_bytes())
            store.begin(told["states"], arenas)
            message = _message(told, arenas)
            try:
                # Not before the first message, when the parent has decoded the data.
                if app is None:
                    app = client_app_for(Worker(experiment, store), failures)
                node = message.metadata.dst_node_id
                context = node_context(node, setup["nodes"], config)
                try:
                    reply = app(message, context)
                except Exception as error:
                    reply = reply_of_error(message, error)
                answer = _answer(reply, store, arenas.all[up_arena(told["reply"])])
                answer["failures"], failures.found = failures.found, []
            except Exception as error:
                # An error before there is an app refuses the experiment.
                refused = app is None and isinstance(error, FedsuiteError)
                fatal = str(error) if refused else ""
                answer = {"error": f"{type(error).__name__}: {error}", "fatal": fatal}
            line.send_bytes(json.dumps(answer).encode())


def _message(told: dict[str, Any], arenas: Arenas) -> Message:
    content = hear_content(told["content"], arenas.get)
    message = Message(content, told["node"], told["type"], group_id=told["group"])
    set_message_id(message, told["id"])
    return message


def _answer(reply: Message, store: CarriedStore, arena: Arena) -> dict[str, Any]:
    if reply.has_error():
        return {"error": reply.error.reason, "fatal": ""}
    arena.clear()
    saved = [
        [client_id, version, sorted(needed), tell_arrays(arrays, arena.put)]
        for client_id, version, arrays, needed in store.saved
    ]
    content = tell_content(reply.content, arena.put, lambda _: None)
    return {"content": content, "saved": saved}


def answer_messages(line: int, descriptors: Sequence[int]) -> None:
    """Serve on open files: the line to the parent, and the arenas."""
    configure_logs()
    try:
        serve(Connection(line), Arenas(descriptors))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The run is over, or its process is gone: nothing is kept here. At once, for
        # whatever else lives in this process has nothing to finish.
        os._exit(0)


if __name__ == "__main__":
    answer_messages(int(sys.argv[1]), list(map(int, sys.argv[2:])))
