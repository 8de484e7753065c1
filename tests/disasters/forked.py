"""Real processes of a world: how they are started, awaited, and looked for afterwards."""

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.disasters.stand_ins import events, lives
from tests.engines.tiny_app import processes_of

LONGEST_S = 180.0
"""Seconds after which what has not come never will, on the busiest machine."""


@dataclass(frozen=True)
class Schedule:
    """What happens in a world of real processes.

    Parameters
    ----------
    seed
        Of what it was drawn from.
    world
        ``pair``, ``alone`` and ``own-folder`` are of a watcher, ``relay`` of a relay.
    last
        Word of the signal that ends it.
    faults
        Place to kind.
    messages
        What the app makes of each message, in the relay's world.
    """

    seed: int
    world: str
    last: str
    faults: Mapping[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()


class Child:
    """A fork of this process that runs a function; its output is a file."""

    def __init__(self, log: Path, work: Callable[[], object]) -> None:
        self.log = log
        self.code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        code = 70
        try:
            # A group and a terminal of its own, so that no signal meets the tests.
            os.setsid()
            output = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                os.dup2(output, number)
                # pytest's stand-ins are no files.
                mode = "r" if name == "stdin" else "w"
                stream = open(number, mode, closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
            # A hang tells where.
            faulthandler.dump_traceback_later(0.9 * LONGEST_S)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            work()
            code = 0
        except SystemExit as error:
            # As Python does at the end of a program.
            is_number = error.code is None or isinstance(error.code, int)
            code = int(error.code or 0) if is_number else 1
            if not is_number:
                print(error.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """Return how it ended, a signal as a negative number; None if it lives."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def kill(self) -> None:
        """End it, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    @property
    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def comes(ready: Callable[[], object], turn: Callable[[], object] | None = None) -> bool:
    """Wait for something, with a turn of work in between; False if it never comes."""
    ends = time.monotonic() + LONGEST_S
    while not ready():
        if time.monotonic() > ends:
            return False
        if turn is not None:
            turn()
        else:
            time.sleep(0.01)
    return True


def wrong_output(text: str, most_lines: int) -> Iterator[str]:
    """Yield what is wrong with a program's output."""
    lines = text.splitlines()
    if "Traceback" in text:
        first = text[text.index("Traceback") :].splitlines()
        yield f"output: a traceback: {' | '.join(first[1:])[:600]}"
    if len(lines) > most_lines:
        yield f"output: {len(lines)} lines, such as {lines[len(lines) // 2][:200]}"
    if long := [line for line in lines if len(line) > 2_500]:
        yield f"output: a line of {len(long[0])} characters"


def left_over(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the processes and files that are left, and end those processes."""
    pids = [int(e[2 if e[0] != "app" else 1]) for e in events(folder) if e[0] in names]
    if not comes(lambda: not any(map(lives, pids)) and not processes_of(str(folder))):
        left = [words.partition(" ")[0] for words in processes_of(str(folder))]
        yield f"left: processes {left}"
        for pid in filter(lives, pids):
            os.kill(pid, signal.SIGKILL)
    if files := sorted(path.name for path in (folder / "t").iterdir()):
        yield f"left: temporary files {files}"
