"""Worker processes of a sweep."""

import os
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


@dataclass(frozen=True)
class _Worker:
    task: Task
    process: subprocess.Popen[bytes]
    started: float

    def outcome(self) -> Outcome:
        code = self.process.wait()
        error = _why(code, self.task.log) if code else None
        return Outcome(self.task.name, error, time.monotonic() - self.started)


def run_tasks(
    tasks: Sequence[Task],
    workers: int,
    on_end: Callable[[Outcome], None],
    keep_open: Sequence[int] = (),
) -> None:
    """Run tasks in their order, ``workers`` at a time, also after a failure.

    No worker outlives this call, even at Ctrl-C or SIGTERM. Workers inherit the file
    descriptors ``keep_open``, such as a lock's.
    """
    waiting = list(reversed(tasks))
    running: list[_Worker] = []
    with stop_signals_raise():
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    with stop_signals_wait():
                        running.append(_start(waiting.pop(), keep_open))
                ended = [worker for worker in running if worker.process.poll() is not None]
                for worker in ended:
                    running.remove(worker)
                    on_end(worker.outcome())
                if not ended:
                    time.sleep(_POLL_S)
        finally:
            _stop([worker.process for worker in running])


def _start(task: Task, keep_open: Sequence[int]) -> _Worker:
    # -P keeps Python files in the current folder from shadowing modules.
    command = [sys.executable, "-P", "-m", "fedsuite", *task.arguments]
    try:
        with open(task.log, "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                # Ctrl-C must reach the sweep only, which then stops its workers.
                start_new_session=True,
                pass_fds=tuple(keep_open),
            )
    except OSError as error:
        raise write_error(task.log, error) from error
    return _Worker(task, process, time.monotonic())


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
                process.wait()


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
