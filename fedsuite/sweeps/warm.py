"""Process that runs commands in turn, each in a fork that finds its imports done.

Importing torch and Flower takes longer than a short run does. The process reads a line of
JSON per command, ``[module, arguments, log]``, and answers with the exit code; a negative
one is a signal's number.
"""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from types import FrameType

PRELOADED = {"fedsuite": ("fedsuite.cli", "fedsuite.engines.local")}
"""Modules that import nearly all that a module's run needs."""


class Server:
    """Runner of commands; Ctrl-C goes on to the command under way and ends the process."""

    def __init__(self) -> None:
        self._child = 0
        self._stopping = False
        signal.signal(signal.SIGINT, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if not self._child:
            raise SystemExit(0)
        self._stopping = True
        os.kill(self._child, signal.SIGINT)

    def serve(self) -> None:
        """Run commands until there are no more; a fork returns when its command ends."""
        for line in sys.stdin:
            module, arguments, log = json.loads(line)
            _preload(module)
            # A Ctrl-C must find the fork known, and its handlers in place.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            self._child = os.fork()
            if not self._child:
                _become(module, arguments, log)
                return
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            status = os.waitpid(self._child, 0)[1]
            self._child = 0
            print(os.waitstatus_to_exitcode(status), flush=True)
            if self._stopping:
                return


def _preload(module: str) -> None:
    # Forks of a process that has used Apple's libraries crash.
    if sys.platform != "darwin":
        for name in PRELOADED.get(module, ()):
            importlib.import_module(name)


def _become(module: str, arguments: list[str], log: str) -> None:
    """Run a module as the main program of this fork."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    if sys.platform == "darwin":
        command = [sys.executable, "-P", "-m", module, *arguments]
        raise SystemExit(subprocess.call(command))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    Server().serve()
