"""Other programs: their start, environment, signals and sure end.

Flower's runtimes start processes that start more processes. Some of these processes leave
their process group (SuperExec, Ray's daemons). :class:`Programs` marks its processes by an
inherited environment variable, so that no process outlives it. A :class:`World` has a
folder of its own besides.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from fedsuite.core.errors import RunError
from fedsuite.core.own_process import anywhere
from fedsuite.core.progress import redraw
from fedsuite.engines.ports import reserved_port
from fedsuite.engines.watchdog import Watchdog, end, mark, marked
from fedsuite.workarounds.flower_release import REQUIREMENT

POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Environment variable of the seconds between a SuperExec's looks for work."""

LONGEST_BASE = 24
"""Longest temporary folder, in characters, below which Ray's sockets fit.

A world adds 13 characters and Ray about 66; a socket's path may have 103 on macOS.
"""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.05
_KILL_PATIENCE_S = 10.0
_START_PATIENCE_S = 120.0
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PortTakenError(Exception):
    """A port taken by another program between choice and use; a new try helps."""


def executable(name: str) -> str:
    """Return the path of a console script beside this Python, or else on ``PATH``.

    Raises
    ------
    RunError
        If there is no such script.
    """
    script = own_script(name) or shutil.which(name)
    if script is None:
        raise RunError(
            f"{name} is neither in {_script_folders()[0]} nor on PATH: run "
            f"pip install '{REQUIREMENT}' in that environment"
        )
    return script


def own_script(name: str) -> str:
    """Return the path of a console script beside this Python; "" if there is none."""
    return shutil.which(name, path=os.pathsep.join(_script_folders())) or ""


def clean_python_path(python_path: str, package: str | None) -> str:
    """Return the entries of a ``PYTHONPATH`` that cannot shadow ``package``.

    Relative entries are dropped, because they mean another folder in another process;
    :func:`~fedsuite.core.own_process.anywhere` has made those of this process absolute.
    Folders with their own ``package`` are dropped if there is a package to shadow.
    """
    entries = (entry for entry in python_path.split(os.pathsep) if os.path.isabs(entry))
    return os.pathsep.join(
        e for e in entries if not (package and Path(e, package).exists())
    )


@contextlib.contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into ``SystemExit`` inside the block.

    The program's own handlers stay. Nothing happens outside the main thread, where Python
    allows no handlers.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, signal.SIGHUP]
    with _handled([n for n in numbers if signal.getsignal(n) is signal.SIG_DFL], stop):
        yield


@contextlib.contextmanager
def stop_signals_wait() -> Iterator[None]:
    """Delay the first Ctrl-C or stop signal until the block's end.

    Processes started inside do not inherit ignored signals, such as the ignored Ctrl-C of a
    shell script's background job.
    """
    came: list[int] = []
    try:
        with _handled(_STOP_SIGNALS, lambda number, _frame: came.append(number)):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@dataclass(frozen=True)
class Program:
    """A process of :class:`Programs`; ``log`` is the file of its output, if it has one."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes]
    log: Path | None
    started: float

    @property
    def text(self) -> str:
        """The program's output so far, without colours."""
        text = self.log.read_text("utf-8", errors="replace") if self.log else ""
        return _ANSI.sub("", text)

    def check_alive(self) -> None:
        """Raise :class:`RunError` if the program has ended."""
        if self.process.poll() is not None:
            raise RunError(f"{self.name} {self.how_it_ended()}")

    def how_it_ended(self) -> str:
        """Return in words how the program ended."""
        code = self.process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        last = "it printed nothing" if self.log else "its last lines say why"
        lines = [last, *(line.strip() for line in self.text.splitlines() if line.strip())]
        return f"ended with code {code}: {lines[-1]}"

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()``, asked about twenty times per second.

        Raises
        ------
        PortTakenError
            If the program ends because a port was in use.
        RunError
            If the program ends for another reason, or is not ready after two minutes.
        """
        deadline = time.monotonic() + _START_PATIENCE_S
        while not ready():
            if self.process.poll() is not None and "already in use" in self.text.lower():
                raise PortTakenError(self.name)
            self.check_alive()
            if time.monotonic() > deadline:
                raise RunError(f"{self.name} was not ready after {_START_PATIENCE_S:g} s")
            redraw()
            time.sleep(_POLL_S)


class Programs:
    """Programs that end together, with all that they have started.

    They carry a mark, by which none outlives this object, not even one that has left its
    process group. A watchdog ends them if this process is killed.

    Parameters
    ----------
    neutral
        Their working folder, which is empty: files there would shadow an app.
    environment
        Their environment.
    folder
        Folder of their output, which is deleted at the end; None shows their output.
    """

    def __init__(
        self, neutral: Path, environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self._id = uuid.uuid4().hex
        self._folder = folder
        self.neutral = neutral
        self.environment = {**environment, **mark(self._id)}
        self._programs: list[Program] = []
        self._watchdog = Watchdog(self._id, folder)

    def start(self, name: str, command: Sequence[str]) -> Program:
        """Start a command in the background; :class:`RunError` if it cannot be."""
        try:
            return self._start(name, command)
        except OSError as error:
            raise RunError(f"{name} cannot be started: {error}") from error

    def _start(self, name: str, command: Sequence[str]) -> Program:
        log = self._folder / f"{name}.log" if self._folder else None
        # A stop in between would leave the program behind.
        with stop_signals_wait(), log.open("wb") if log else nullcontext() as output:
            # Who cleans temporary folders takes an empty one.
            self.neutral.mkdir(mode=0o700, exist_ok=True)
            process = subprocess.Popen(
                [executable(command[0]), *command[1:]],
                cwd=self.neutral,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if log else None,
                start_new_session=True,
            )
            program = Program(name, command, process, log, time.monotonic())
            self._programs.append(program)
        self._watchdog.tell(p.process.pid for p in self._programs)
        return program

    def members(self) -> set[int]:
        """Ids of all living processes of these programs.

        Outside Linux the set holds only processes that were started here.
        """
        own = {p.process.pid for p in self._programs if p.process.poll() is None}
        return own | marked(self._id, self._folder)

    def close(self, grace_s: float) -> None:
        """End every process, then delete the folder.

        Ctrl-C and stop signals wait meanwhile, so that nothing is left behind.

        Parameters
        ----------
        grace_s
            Seconds between SIGTERM and SIGKILL; 0 kills at once.
        """
        with _handled(_STOP_SIGNALS, signal.SIG_IGN):
            if grace_s > 0:
                end(self.members, self._signal, signal.SIGTERM, grace_s)
            end(self.members, self._signal, signal.SIGKILL, _KILL_PATIENCE_S)
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._watchdog.dismiss()

    def _signal(self, pid: int, number: int) -> None:
        if any(pid == program.process.pid for program in self._programs):
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


class World(Programs):
    """Programs in a private folder, with ports; leaving the world ends and deletes all.

    Parameters
    ----------
    package
        Name of the package that the processes must import from the app. ``PYTHONPATH``
        entries that would shadow the package are not handed on.
    """

    def __init__(self, package: str = "fedsuite") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fed-", dir=_short_base())).resolve()
        neutral = self.folder / "empty"
        neutral.mkdir()
        environment = flower_environment(anywhere(os.environ), package) | {
            "FLWR_HOME": str(self.folder / "flwr"),
            "RAY_TMPDIR": str(self.folder),
        }
        super().__init__(neutral, environment, self.folder)
        self._reserved: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        # After a good end no process has work left to finish.
        self.close(grace_s=0.0 if kind is None else 1.0)
        for reserved in self._reserved:
            reserved.close()

    def reserve_port(self) -> int:
        """Return a free port of 127.0.0.1, reserved while the world is open."""
        port, reserved = reserved_port()
        self._reserved.append(reserved)
        return port


def follow(program: Program, while_waiting: Callable[[], None]) -> Iterator[str]:
    """Yield the lines of a program's output as they come, without colours.

    Parameters
    ----------
    program
        The program to follow.
    while_waiting
        Function called about twenty times per second; an exception ends the iteration.

    Yields
    ------
    str
        One line without its end, until the program ends.
    """
    assert program.log is not None
    with program.log.open(encoding="utf-8", errors="replace", newline="\n") as output:
        unfinished = ""
        while True:
            running = program.process.poll() is None
            *lines, unfinished = (unfinished + output.read()).split("\n")
            yield from (_ANSI.sub("", line).rstrip() for line in lines)
            if not running:
                break
            while_waiting()
            time.sleep(_POLL_S)
        if unfinished:
            yield _ANSI.sub("", unfinished).rstrip()


@contextlib.contextmanager
def _handled(
    numbers: Sequence[signal.Signals],
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Iterator[None]:
    """Install ``handler`` inside the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            # None stands for a handler of C code, which Python cannot restore.
            signal.signal(number, old if old is not None else signal.SIG_DFL)


def _script_folders() -> list[str]:
    return [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]


def _short_base() -> str:
    """Return a temporary folder whose path is short enough for Ray's sockets."""
    base = tempfile.gettempdir()
    fits = len(base) <= LONGEST_BASE and not any(c.isspace() for c in base)
    return base if fits or not os.access("/tmp", os.W_OK) else "/tmp"


def flower_environment(
    inherited: Mapping[str, str], package: str | None = None
) -> dict[str, str]:
    """Return the environment that keeps Flower and Ray private, offline and in bounds.

    Parameters
    ----------
    inherited
        Environment to start from.
    package
        Package of the app; no other package of this name may be on the path.
    """
    kept = ("FLWR_LOG_LEVEL", POLL_INTERVAL)
    # Jupyter asks for colours, which would stand in the JSON that Flower's commands print.
    dropped = ("RAY_ADDRESS", "FORCE_COLOR", "CLICOLOR_FORCE")
    environment = {
        key: value
        for key, value in inherited.items()
        if key in kept or not (key.startswith("FLWR_") or key in dropped)
    }
    if python_path := clean_python_path(environment.pop("PYTHONPATH", ""), package):
        environment["PYTHONPATH"] = python_path
    for name in ("NO_PROXY", "no_proxy"):
        others = environment.get(name)
        environment[name] = ",".join(filter(None, ["127.0.0.1,localhost", others]))
    environment.setdefault("OMP_NUM_THREADS", "1")
    # Flower starts its own programs by name.
    scripts = [*_script_folders(), environment.get("PATH", os.defpath)]
    return environment | {
        "PATH": os.pathsep.join(scripts),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
    }
