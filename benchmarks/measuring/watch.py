"""Run a command and watch it from outside: rounds, processor time and memory of its tree.

Linux only: reads ``/proc``. Every arm of a comparison is watched in the same way, whatever
it is written in: it appends a line to a file at the end of each round.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.5
"""Seconds between looks for new processes."""

MEMORY_LOOKS = 4
"""Looks from one sum of memory to the next, where there are several processes."""

POLL_S = 0.02
"""Seconds between looks for new lines. Every look takes time from an arm that uses all
cores, so they are few; when a line was written, the file itself says."""

PATIENCE_S = 30.0


class WatchedFailure(RuntimeError):
    """A watched command failed; the message has the end of what it printed."""


@dataclass(frozen=True)
class Mark:
    """When a line appeared, and what had been used by then, in seconds since the start."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Watched:
    """What a command took.

    Parameters
    ----------
    wall, cpu
        Seconds from start to end, and processor seconds of all its processes.
    peak_mib
        Largest sum of the proportional memory of its processes that was seen, or the
        largest memory that any process of it ever had, whichever is more.
    marks
        One for each line of the watched file.
    output
        What it printed.
    cut
        Whether the limit ended it.
    """

    wall: float
    cpu: float
    peak_mib: float
    marks: tuple[Mark, ...]
    output: str
    cut: bool = False


class Tree:
    """A process and its descendants, also those that lost their parents meanwhile.

    Parameters
    ----------
    root
        Process id of the first.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._cpu: dict[tuple[int, int], float] = {}
        self._alive: set[int] = {root}
        self.peak_kib = 0

    def look(self) -> None:
        """Find processes that are new."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            fields = _stat(int(entry.name))
            if fields:
                parents[int(entry.name)] = int(fields[1])
        family = {pid for pid in self._alive if pid in parents} | {self._root}
        grown = True
        while grown:
            children = {pid for pid, parent in parents.items() if parent in family}
            grown = not children <= family
            family |= children
        self._alive = family

    def cpu(self) -> float:
        """Return the processor seconds of all processes seen so far, own time alone."""
        for pid in self._alive:
            fields = _stat(pid)
            if fields:
                key = pid, int(fields[19])
                self._cpu[key] = (int(fields[11]) + int(fields[12])) / TICKS
        return sum(self._cpu.values())

    def weigh(self) -> None:
        """Take note of the memory, if there are several processes: each page once."""
        if len(self._alive) > 1:
            self.peak_kib = max(self.peak_kib, sum(map(_proportional_kib, self._alive)))


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third on; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def watch(
    command: Sequence[str],
    lines: Path,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limit_s: float | None = None,
) -> Watched:
    """Run a command to its end, or to a limit, and return what it took.

    Parameters
    ----------
    command
        What to run.
    lines
        File whose lines are marks; need not exist yet.
    environment, cwd
        Of the process; None is this one's.
    limit_s
        Seconds after which it is told to end; None for no limit.

    Raises
    ------
    WatchedFailure
        If it ends by itself, and not with code 0.
    """
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        timers = _timers(process.pid, limit_s)
        try:
            marks, tree, status, usage = _follow(process.pid, lines, start)
        except BaseException:
            _stop(process)
            raise
        finally:
            for timer in timers:
                timer.cancel()
        wall = time.monotonic() - start
        cut = limit_s is not None and wall > limit_s
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        output = log.read().decode("utf-8", errors="replace")
    if process.returncode and not cut:
        tail = "\n".join(output.splitlines()[-30:])
        raise WatchedFailure(f"{' '.join(command)}: code {process.returncode}\n{tail}")
    return Watched(
        wall=wall,
        cpu=max(tree.cpu(), usage.ru_utime + usage.ru_stime),
        peak_mib=max(tree.peak_kib, usage.ru_maxrss) / 1024,
        marks=tuple(marks),
        output=output,
        cut=cut,
    )


def _timers(pid: int, limit_s: float | None) -> list[threading.Timer]:
    """Return started timers that end a process, gently first."""
    if limit_s is None:
        return []
    last = limit_s + PATIENCE_S
    timers = [
        threading.Timer(limit_s, _signal, [os.kill, pid, signal.SIGTERM]),
        threading.Timer(last, _signal, [os.killpg, pid, signal.SIGKILL]),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    return timers


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        send(pid, number)


def _follow(
    pid: int, lines: Path, start: float
) -> tuple[list[Mark], Tree, int, "os.struct_rusage"]:
    marks: list[Mark] = []
    tree = Tree(pid)
    start_of_day = time.time() - (time.monotonic() - start)
    looks = size = 0
    next_look = start
    ended = 0
    while not ended:
        # Before the look at the lines: what an ended process wrote is then there.
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        now = time.monotonic()
        file = lines.stat() if lines.exists() else None
        if file is not None and file.st_size > size:
            size = file.st_size
            count = lines.read_bytes().count(b"\n") - len(marks)
            marks += [Mark(file.st_mtime - start_of_day, tree.cpu())] * count
        if not ended and now >= next_look:
            tree.look()
            tree.cpu()
            if looks % MEMORY_LOOKS == 0:
                tree.weigh()
            looks += 1
            next_look = now + LOOK_S
        if not ended:
            time.sleep(POLL_S)
    return marks, tree, status, usage


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End what was started: gently first, since arms end processes of their own."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
