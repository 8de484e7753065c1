"""Worker processes for an app's nodes, each with nodes of its own.

A node stays with its worker, where its state lives. Messages go as Flower's own bytes
through pipes, so any system will do, and nothing is unpickled. What an app prints in a
worker goes to standard error.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from fedsuite.core.errors import FedsuiteError, RunError
from fedsuite.core.own_process import with_fedsuite
from fedsuite.engines.apps.grid import Sent
from fedsuite.engines.apps.nodes import Answer, Federation, Nodes
from fedsuite.engines.apps.project import Project
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.wire import message_from_bytes, message_to_bytes

_LENGTH = struct.Struct("<Q")


class Workers:
    """Processes that answer for an app's nodes.

    Parameters
    ----------
    project
        The app, which each process imports for itself.
    federation
        The nodes; that of partition k lives in worker k modulo ``num_workers``.
    num_workers
        Number of processes.
    """

    def __init__(self, project: Project, federation: Federation, num_workers: int) -> None:
        setup = {
            "folder": str(project.folder),
            "client_app": project.client_app,
            "node_ids": federation.node_ids,
            "run_id": federation.run_id,
            "run_config": dict(federation.run_config),
            "seed": federation.seed,
        }
        line = json.dumps(setup).encode()
        self._workers = [_Worker(number, line) for number in range(1, num_workers + 1)]
        self._threads = ThreadPoolExecutor(num_workers)

    def answers(self, messages: Sequence[Sent]) -> Iterator[tuple[Sent, Answer]]:
        """Yield each message with its node's answer.

        Raises
        ------
        RunError
            If a worker process died, or could not import the app.
        """
        num_workers = len(self._workers)
        shares = [
            [sent for sent in messages if sent.partition % num_workers == place]
            for place in range(num_workers)
        ]
        for answered in self._threads.map(_Worker.answers, self._workers, shares):
            yield from answered

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown()


class _Worker:
    """One process, and the pipes to it."""

    def __init__(self, number: int, setup: bytes) -> None:
        self._number = number
        # Legacy strategies send from several threads.
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedsuite.engines.apps.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=with_fedsuite(os.environ) | {"PYTHONUNBUFFERED": "1"},
            # Ctrl-C is for the parent, which then ends its workers.
            start_new_session=True,
        )
        self._tell(setup)

    def answers(self, messages: Sequence[Sent]) -> list[tuple[Sent, Answer]]:
        """Return the answers to messages, one after the other."""
        with self._lock:
            return [(sent, self._answer(sent)) for sent in messages]

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self, sent: Sent) -> Answer:
        self._tell(json.dumps(sent.partition).encode())
        self._tell(message_to_bytes(sent.message))
        assert self._process.stdout is not None
        header = _read(self._process.stdout)
        if header is None:
            raise self._ended()
        outcome = json.loads(header)
        if "fatal" in outcome:
            raise RunError(outcome["fatal"])
        reply = _read(self._process.stdout)
        if reply is None:
            raise self._ended()
        return Answer(message_from_bytes(reply), outcome["seconds"])

    def _tell(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            _write(self._process.stdin, data)
        except OSError:
            raise self._ended() from None

    def _ended(self) -> RunError:
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        return RunError(
            f"worker process {self._number} ended ({how}): if the machine ran out of "
            "memory, take fewer --workers"
        )


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def _read(file: IO[bytes]) -> bytes | None:
    """Return the next data, None at the end."""
    length = file.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(length)
    data = file.read(size)
    return data if len(data) == size else None


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer messages until the parent closes the pipe."""
    line = _read(requests)
    if line is None:
        return
    setup = json.loads(line)
    folder = Path(setup.pop("folder"))
    project = Project(folder, "", setup.pop("client_app"), setup["run_config"])
    federation = Federation(**{**setup, "node_ids": tuple(setup["node_ids"])})
    fatal, nodes = "", None
    with flower_identity(federation.run_id), project.own_modules():
        try:
            with federation.streams("import"):
                nodes = Nodes(project.load_client(), federation)
        except FedsuiteError as error:
            fatal = str(error)
        while (partition := _read(requests)) is not None:
            message = _read(requests)
            if message is None:
                return
            if nodes is None:
                _write(replies, json.dumps({"fatal": fatal}).encode())
                continue
            answer = nodes.answer(message_from_bytes(message), json.loads(partition))
            _write(replies, json.dumps({"seconds": answer.seconds}).encode())
            _write(replies, message_to_bytes(answer.reply))


def _main() -> None:
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What the app prints must not come between the replies.
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        _serve(requests, replies)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


if __name__ == "__main__":
    _main()
