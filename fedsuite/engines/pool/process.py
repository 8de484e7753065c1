"""Start of a worker process: a fork where that is safe, else a new Python.

A fork has torch, Flower and fedsuite loaded, which takes a new Python a second or more. It
is safe on Linux, from one thread, without a GPU, and where neither process runs torch on
several threads.
"""

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from contextvars import Context
from multiprocessing.context import ForkProcess
from typing import Protocol

from fedsuite.core.own_process import environment

_CHILD = "fedsuite.engines.pool.child"


class ChildProcess(Protocol):
    """A process that was started, as ``subprocess`` knows it."""

    def kill(self) -> None:
        """Kill the process, if it has not ended."""

    def wait(self) -> int:
        """Wait for the end; return the exit code, or minus the signal that killed."""


def start_child(
    ours: socket.socket, theirs: socket.socket, descriptors: Sequence[int], threads: int
) -> ChildProcess:
    """Start a process that answers messages, and close its end of the line here.

    Parameters
    ----------
    ours, theirs
        Ends of the line between the processes.
    descriptors
        Open files of the arenas.
    threads
        Torch threads of the new process.
    """
    try:
        if _can_fork(threads):
            # Nothing of this process's run holds there, such as its progress on a terminal.
            arguments = (_answer_messages, ours, theirs.fileno(), descriptors)
            fork = _Fork(target=Context().run, args=arguments, daemon=True)
            with warnings.catch_warnings():
                # Libraries have threads that no worker uses.
                warnings.simplefilter("ignore", DeprecationWarning)
                fork.start()
            return fork
        numbers = (theirs.fileno(), *descriptors)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _CHILD, *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            env=environment(),
            # Ctrl-C is for the parent, which then stops its workers.
            start_new_session=True,
            pass_fds=numbers,
        )
    finally:
        theirs.close()


def _can_fork(threads: int) -> bool:
    import torch

    alone = threading.active_count() == 1 and threads == torch.get_num_threads() == 1
    return alone and sys.platform == "linux" and not torch.cuda.is_available()


class _Fork(ForkProcess):
    """A fork of this process."""

    def wait(self) -> int:
        self.join()
        code = self.exitcode
        assert code is not None
        return code


def _answer_messages(ours: socket.socket, line: int, descriptors: Sequence[int]) -> None:
    from fedsuite.engines.pool.child import answer_messages

    # With the parent's end open here, the line would outlive the parent.
    ours.close()
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        # What a client's code prints is seen at once.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    answer_messages(line, descriptors)
