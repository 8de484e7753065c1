"""Worker processes of a sweep."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedsuite.core.files import write_error
from fedsuite.core.own_process import environment
from fedsuite.engines.processes import stop_signals_raise, stop_signals_wait

PREFIX = "fedsuite: error: "
"""Beginning of the command line's error line."""

MODULE = "fedsuite"
"""Module that a task runs as its program."""

_POLL_S = 0.05
_STOP_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Task:
    """Name and arguments of a ``fedsuite`` command, and the file of its output."""

    name: str
    arguments: tuple[str, ...]
    log: Path


@dataclass(frozen=True)
class Outcome:
    """End of a task; ``error`` is one line, None after success."""

    name: str
    error: str | None
    seconds: float


class _Worker:
    """A process that runs tasks in turn."""

    def __init__(self, keep_open: Sequence[int]) -> None:
        # -P keeps Python files in the current folder from shadowing modules.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedsuite.sweeps.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            # Ctrl-C must reach the sweep only, which then stops its workers.
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )

    def begin(self, task: Task) -> None:
        """Begin a task; its log exists from here on."""
        self.task = task
        self._started = time.monotonic()
        try:
            task.log.write_bytes(b"")
        except OSError as error:
            raise write_error(task.log, error) from error
        line = json.dumps([MODULE, list(task.arguments), str(task.log)])
        assert self.process.stdin is not None
        # A worker that was killed meanwhile is seen by its missing answer.
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def outcome(self) -> Outcome | None:
        """Return the end of the task; None while it runs."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], 0)[0]:
            return None
        answer = self.process.stdout.readline()
        code = int(answer) if answer else self.process.wait()
        # A worker that ends without an answer has not run its task.
        error = _why(code, self.task.log) if code or not answer else None
        return Outcome(self.task.name, error, time.monotonic() - self._started)

    @property
    def alive(self) -> bool:
        """Whether the worker can take another task."""
        return self.process.poll() is None


def run_tasks(
    tasks: Sequence[Task],
    workers: int,
    on_end: Callable[[Outcome], None],
    keep_open: Sequence[int] = (),
    while_waiting: Callable[[Sequence[Task]], None] = lambda running: None,
) -> None:
    """Run tasks in their order, ``workers`` at a time, also after a failure.

    No worker outlives this call, even at Ctrl-C or SIGTERM. Workers inherit the file
    descriptors ``keep_open``, such as a lock's. ``while_waiting`` is called with the tasks
    that run, about twenty times a second.
    """
    waiting = list(reversed(tasks))
    idle: list[_Worker] = []
    running: list[_Worker] = []
    with stop_signals_raise():
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    with stop_signals_wait():
                        running.append(idle.pop() if idle else _Worker(keep_open))
                    running[-1].begin(waiting.pop())
                ended = [(worker, end) for worker in running if (end := worker.outcome())]
                for worker, end in ended:
                    running.remove(worker)
                    if worker.alive:
                        idle.append(worker)
                    on_end(end)
                while_waiting([worker.task for worker in running])
                if not ended:
                    time.sleep(_POLL_S)
        finally:
            _stop([worker.process for worker in (*running, *idle)])


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt processes as Ctrl-C does, and kill those that do not end."""
    try:
        for process in processes:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _STOP_PATIENCE_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        # Also on a second Ctrl-C.
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            # Reaps the process and closes its pipes.
            process.communicate()


def _why(code: int, log: Path) -> str:
    """Return in one line why a worker failed."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    text = log.read_text("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(PREFIX)]
    if told:
        return told[-1].removeprefix(PREFIX)
    return lines[-1] if lines else f"exit code {code}"
