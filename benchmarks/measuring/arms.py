"""The arms of a comparison: the command that each is, and where it leaves its model."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measuring.at_once import APART

BENCHMARKS = Path(__file__).resolve().parents[1]
EXPERIMENTS = BENCHMARKS / "experiments"

ENGINES: dict[str, tuple[str, ...]] = {
    "local": ("--engine", "local"),
    "local-2": ("--engine", "local", "--set", "workers=2"),
    "ray": ("--engine", "ray"),
}
"""Arms that are fedsuite's engines: options of ``fedsuite run``."""

TWICE = "local-twice"
"""Two runs of ``local`` at once; the first is timed. Shows what a second core can bring."""

PEERS: dict[str, tuple[str, ...]] = {
    "floor": ("floor",),
    "hand-loop": ("hand_loop",),
    "flower": ("stock_flower",),
    "pfl": ("pfl_loop",),
    "blazefl-process": ("blazefl_loop", "process"),
    "blazefl-thread": ("blazefl_loop", "thread"),
}
"""Arms that are modules of ``peers``, and their first arguments."""

SIMULATED = {"simulate": 1, "simulate-2": 2}
"""Arms that are ``fedsuite simulate`` with the app of the arm ``flower``: workers."""

PACKAGES = {"pfl": "pfl", "blazefl-process": "blazefl", "blazefl-thread": "blazefl"}
"""Peers that run in an environment of their own, which has this package."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Parameters
    ----------
    command
        What is run.
    rounds
        File that gets a line at the end of each round.
    model
        File with the final parameters.
    """

    command: tuple[str, ...]
    rounds: Path
    model: Path


def environment() -> dict[str, str]:
    """Return the environment of all arms: one thread a process, the same imports."""
    paths = [
        str(BENCHMARKS),
        str(BENCHMARKS.parent),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    absolute = [os.path.abspath(path) for path in paths if path]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # BlazeFL's progress bars are on, unless this turns them off.
    quiet = {"TQDM_DISABLE": "1"}
    return {**os.environ, **threads, **quiet, "PYTHONPATH": os.pathsep.join(absolute)}


def method_file(case: Path, arm: str) -> Path:
    """Return the experiment of an arm that is another method of a case."""
    return case.with_name(f"{case.stem}_{arm.replace('-', '_')}.toml")


def is_method(case: Path, arm: str) -> bool:
    """Return whether an arm is another method of a case."""
    known = {*ENGINES, *PEERS, *SIMULATED, TWICE}
    return arm not in known and method_file(case, arm).is_file()


def engine_arm(experiment: Path, folder: Path, options: Sequence[str]) -> Arm:
    """Return a run of fedsuite, as its users type it.

    Parameters
    ----------
    experiment
        The experiment file.
    folder
        The run's folder goes into it.
    options
        More of ``fedsuite run``.
    """
    command = (
        *(sys.executable, "-m", "fedsuite", "run", str(experiment)),
        *("--set", f"output-dir={folder}", "--set", "run-name=run"),
        *options,
    )
    run = folder / "run"
    return Arm(command, run / "rounds.jsonl", run / "model.safetensors")


def twice_arm(experiment: Path, folder: Path) -> Arm:
    """Return two runs of the local engine at once; the rounds are those of the first.

    Parameters
    ----------
    experiment
        The experiment file.
    folder
        The runs' folders go into it.
    """
    watched, beside = (
        engine_arm(experiment, folder / name, ENGINES["local"]) for name in ("1", "2")
    )
    both = (*watched.command, APART, *beside.command)
    command = (sys.executable, "-m", "measuring.at_once", *both)
    return replace(watched, command=command)


def peer_arm(name: str, prepared: Path, folder: Path, python: str) -> Arm:
    """Return a peer's run.

    Parameters
    ----------
    name
        One of :data:`PEERS`.
    prepared
        What it reads.
    folder
        What it writes into.
    python
        Interpreter to run it with.
    """
    module, *first = PEERS[name]
    command = (python, "-m", f"peers.{module}", *first, str(prepared), str(folder))
    return Arm(command, folder / "rounds.jsonl", folder / "model.npz")


def simulated_arm(workers: int, prepared: Path, folder: Path) -> Arm:
    """Return ``fedsuite simulate`` with the app of stock Flower's arm, one node a client.

    Parameters
    ----------
    workers
        Processes of the nodes.
    prepared, folder
        What it reads, and what it writes into.
    """
    settings = json.loads((prepared / "settings.json").read_text())
    command = (
        *(sys.executable, "-m", "fedsuite", "simulate", str(BENCHMARKS / "peers")),
        *("--num-supernodes", str(settings["num-clients"]), "--workers", str(workers)),
        *("--run-config", f"prepared='{prepared}' output='{folder}'"),
    )
    return Arm(command, folder / "rounds.jsonl", folder / "model.npz")


def make_arm(
    name: str, case: Path, prepared: Path, folder: Path, pythons: Mapping[str, str]
) -> Arm:
    """Return an arm by its name.

    Parameters
    ----------
    name
        An engine, a peer, one of :data:`SIMULATED`, :data:`TWICE`, or another method of
        the case.
    case
        The case's experiment file.
    prepared, folder
        What is read, and what is written into.
    pythons
        Package to the interpreter of its environment; see :data:`PACKAGES`.
    """
    if name in PEERS:
        python = pythons[PACKAGES[name]] if name in PACKAGES else sys.executable
        return peer_arm(name, prepared, folder, python)
    if name in SIMULATED:
        return simulated_arm(SIMULATED[name], prepared, folder)
    if name == TWICE:
        return twice_arm(prepared / "experiment.toml", folder)
    if name in ENGINES:
        return engine_arm(prepared / "experiment.toml", folder, ENGINES[name])
    return engine_arm(prepared / name / "experiment.toml", folder, ENGINES["local"])
