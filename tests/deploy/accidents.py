"""Accidents of real processes: a run to disturb, the moment to do so, what came out."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.deploy.commands import portable
from fedsuite.engines.processes import Program
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.reader import Run

FEDAKD: Mapping[str, Value] = {
    "method": "fedakd",
    "dataset": "digits",
    "model": "cnn-fedakd",
    "num-clients": 4,
    "num-rounds": 4,
    "checkpoint-every": 1,
    "device": "cpu",
    "run-name": "run",
}


def values(folder: Path, **changes: Value) -> dict[str, Value]:
    renamed = {name.replace("_", "-"): value for name, value in changes.items()}
    places = {"output-dir": str(folder / "runs")}
    return portable(Experiment.from_values({**FEDAKD, **places, **renamed}))


def undisturbed(folder: Path) -> Run:
    return fedsuite.run({**FEDAKD, "output-dir": str(folder / "local")})


def kill(programs: list[Program]) -> None:
    """Kill programs and all that they started: SIGKILL gives nobody a last word."""
    for program in programs:
        for pid in (*descendants(program.process.pid), program.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.process.wait()


def descendants(pid: int) -> list[int]:
    """Return the processes below one, the nearest first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


def when(lines: list[str], words: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Return what takes lines, and acts once, in a thread, after one with these words."""
    done = threading.Event()

    def take(line: str) -> None:
        lines.append(line)
        if words in line and not done.is_set():
            done.set()
            threading.Thread(target=act, daemon=True).start()

    return take


def final_bits(run: Run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()
