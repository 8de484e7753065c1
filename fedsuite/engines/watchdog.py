"""Ends what a killed process leaves behind: the programs that it started, and their folder.

A process that starts programs has a watchdog at the end of a pipe. However the process
dies, by SIGKILL too, the pipe closes. Then the watchdog ends the programs.

The watchdog runs this file by its path. It imports nothing but Python's own modules, so it
starts at once and stays small.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

MARKER = "FEDSUITE_ENGINE_ID"
"""Environment variable that marks the programs that a process has started."""

_PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.05


def mark(identity: str) -> dict[str, str]:
    """Return the environment of programs with a mark, which keep the mark of others."""
    others = os.environ.get(MARKER)
    return {MARKER: f"{others}/{identity}" if others else identity}


def marked(identity: str, folder: Path | None = None) -> set[int]:
    """Return the ids of living processes with a mark, on Linux.

    The mark is in the environment. Ray's workers overwrite theirs, so a working folder in
    ``folder`` is a mark too.
    """
    pids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place = os.readlink(entry / "cwd")
            environment = (entry / "environ").read_bytes()
        except OSError:  # another user's, a zombie, or gone
            continue
        if identity.encode() in environment or (
            folder and Path(place).is_relative_to(folder)
        ):
            pids.add(int(entry.name))
    return pids - {os.getpid()}


class Watchdog:
    """A watchdog of this process.

    Parameters
    ----------
    identity
        The programs' mark; see :func:`mark`.
    folder
        Folder of the programs, which is deleted with them, if any.
    """

    def __init__(self, identity: str, folder: Path | None = None) -> None:
        script = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            [*script, identity, str(folder or "")],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def tell(self, leaders: Iterable[int]) -> None:
        """Tell which process groups run now; only systems without /proc need to know."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(" ".join(map(str, leaders)) + "\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """End the watchdog, which has nothing to do any more."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def main(identity: str, folder: str) -> None:
    """Wait until the pipe closes, then end the programs and delete the folder."""
    leaders: list[int] = []
    for line in sys.stdin:
        leaders = [int(word) for word in line.split()]
    place = Path(folder) if folder else None
    for number in (signal.SIGTERM, signal.SIGKILL):
        if Path("/proc/self").exists():
            end(lambda: marked(identity, place), os.kill, number, _PATIENCE_S)
        else:
            end(lambda: set(filter(_is_group, leaders)), os.killpg, number, _PATIENCE_S)
    if place:
        shutil.rmtree(place, ignore_errors=True)


def end(
    living: Callable[[], set[int]],
    kill: Callable[[int, int], None],
    number: int,
    patience_s: float,
) -> None:
    """Signal what lives, also what is new, until nothing is left or patience ends."""
    deadline, signalled = time.monotonic() + patience_s, set[int]()
    while (there := living()) and time.monotonic() < deadline:
        for pid in there - signalled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, number)
        signalled |= there
        time.sleep(_LOOK_EVERY_S)


def _is_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
