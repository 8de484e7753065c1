"""Runs of a few rounds on digits, in the folders that figures read."""

from pathlib import Path

from fedsuite.core.keys import Value
from fedsuite.engines.api import run
from fedsuite.results.reader import Run

SMALL: dict[str, Value] = {
    "dataset": "digits",
    "partitioner": "dirichlet-client",
    "model": "linear",
    "num-clients": 4,
    "num-rounds": 2,
    "score-whole-test": True,
    "device": "cpu",
    "report": False,
}
MIXED: dict[str, Value] = {
    "client-models": "mlp:hidden-width=8, linear",
    "client-model-assignment": "round-robin",
    "client-initialisation": "own",
}
FEDAL: dict[str, Value] = {"method": "fedal", "public-size": 60, **MIXED}


def small_run(folder: Path, **keys: Value) -> Run:
    """Make a run of the small experiment with other keys, in snake case, in a folder."""
    changes = {name.replace("_", "-"): value for name, value in keys.items()}
    where = {"output-dir": str(folder.parent), "run-name": folder.name}
    return run({**SMALL, **where, **changes})


def fedal_run(folder: Path, **keys: Value) -> Run:
    """Make a run of FedAL with different networks."""
    own = {name.replace("-", "_"): value for name, value in FEDAL.items()}
    return small_run(folder, **{**own, **keys})
