"""Runs of a sweep, each in a process of its own, some at a time."""

import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedsuite.core.files import write_error
from fedsuite.core.own_process import environment
from fedsuite.core.progress import redraw
from fedsuite.engines.processes import stop_signals_raise, stop_signals_wait

PREFIX = "fedsuite: error: "
"""Beginning of the command line's error line."""

MODULE = "fedsuite"
"""Module that a task runs as its program."""

PRELOADED = ["fedsuite.cli", "fedsuite.engines.local"]
"""Modules that import nearly all that it needs, which takes longer than a short run."""

# Forks of a process that has used Apple's libraries crash.
_CONTEXT = (
    multiprocessing.get_context("spawn")
    if sys.platform == "darwin"
    else multiprocessing.get_context("forkserver")
)

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


class _Run:
    """A task at work in a process of its own."""

    def __init__(self, task: Task, keep_open: Sequence[int]) -> None:
        try:
            task.log.write_bytes(b"")
        except OSError as error:
            raise write_error(task.log, error) from error
        self.task = task
        self.started = time.monotonic()
        kept = [Connection(os.dup(descriptor)) for descriptor in keep_open]
        values = environment()
        self.process = _CONTEXT.Process(target=_become, args=(task, MODULE, values, kept))
        before = dict(os.environ)
        # With the first task starts the process that forks, which loads modules by these.
        # Python files in the current folder are not to shadow them.
        os.environ.update(values, PYTHONSAFEPATH="1")
        # A Ctrl-C waits until the task can hear it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            _CONTEXT.set_forkserver_preload(PRELOADED)
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.environ.clear()
            os.environ.update(before)

    def outcome(self) -> Outcome | None:
        """Return the end of the task; None while it runs."""
        code = self.process.exitcode
        if code is None:
            return None
        error = _why(code, self.task.log) if code else None
        return Outcome(self.task.name, error, time.monotonic() - self.started)


def _become(
    task: Task, module: str, values: Mapping[str, str], _kept: Sequence[Connection]
) -> None:
    """Run a task's module as the main program of this process."""
    os.setsid()
    output = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.environ.clear()
    os.environ.update(values)
    sys.argv = [module, *task.arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_tasks(
    tasks: Sequence[Task],
    workers: int,
    on_end: Callable[[Outcome], None],
    keep_open: Sequence[int] = (),
) -> None:
    """Run tasks in their order, ``workers`` at a time, also after a failure.

    No process outlives this call, even at Ctrl-C or SIGTERM. Processes inherit the file
    descriptors ``keep_open``, such as a lock's.
    """
    waiting = list(reversed(tasks))
    running: list[_Run] = []
    with stop_signals_raise():
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    with stop_signals_wait():
                        running.append(_Run(waiting.pop(), keep_open))
                ended = [(run, end) for run in running if (end := run.outcome())]
                for run, end in ended:
                    running.remove(run)
                    on_end(end)
                redraw()
                if not ended:
                    time.sleep(_POLL_S)
        finally:
            _stop([run.process for run in running])


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Interrupt processes as Ctrl-C does, and kill those that do not end."""
    try:
        for process in processes:
            _signal(os.kill, process, signal.SIGINT)
        deadline = time.monotonic() + _STOP_PATIENCE_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        # Also on a second Ctrl-C.
        for process in processes:
            _signal(os.killpg, process, signal.SIGKILL)
            process.join()


def _signal(
    kill: Callable[[int, int], None], process: BaseProcess, number: signal.Signals
) -> None:
    if process.is_alive() and process.pid is not None:
        with suppress(ProcessLookupError):
            kill(process.pid, number)


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
