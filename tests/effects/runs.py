"""Small runs, and what each of them did: all that its folder holds but times and names."""

import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedsuite.core.errors import RunError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment
from fedsuite.strategies import load_strategy

Did = dict[str, object]
"""File of the run's folder to what it holds."""

SMALL: Mapping[str, Value] = {
    "dataset": "digits",
    "partitioner": "dirichlet",
    "model": "mlp",
    "hidden-width": 8,
    "hidden-layers": 1,
    "num-clients": 3,
    "num-rounds": 2,
    "batch-size": 64,
    "device": "cpu",
    "checkpoint-every": 0,
    "report": False,
}

_NAMES_AND_TIMES = (".lock", "experiment.toml")


def base(method: str) -> dict[str, Value]:
    """Return the small experiment with a method, as a user would write it."""
    values: dict[str, Value] = {**SMALL, "method": method}
    strategy = load_strategy(METHODS[method])
    if strategy.takes("public_rows"):
        values["public-size"] = 40
    names = {key.name for key in strategy.KEYS}
    if "transfer-steps" in names and "feddf-mode" not in names:
        # Two tell as much; FedDF's server takes none.
        values["transfer-steps"] = 2
    return values


def did(values: Mapping[str, Value]) -> Did:
    """Run an experiment and return what it did.

    Raises
    ------
    FedsuiteError
        If it was refused before its first round.
    """
    return recent(tuple(sorted(values.items())))


@lru_cache(maxsize=64)
def recent(values: tuple[tuple[str, Value], ...]) -> Did:
    """Run an experiment, unless it is one of the last that were run."""
    experiment = Experiment.from_values(dict(values))
    with _quick(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        try:
            run_local(experiment, path)
        except RunError as error:
            return {**(_contents(path) if path.exists() else {}), "error": str(error)}
        return _contents(path)


@contextmanager
def _quick() -> Iterator[None]:
    """Leave out what takes most of a small run's time and says nothing of keys."""
    with (
        patch("os.fsync"),
        patch("fedsuite.results.writer._version", return_value=""),
        patch("fedsuite.running.server.tell_summary"),
        redirect_stdout(io.StringIO()),
    ):
        yield


def _contents(folder: Path) -> Did:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        _name(path, folder): _content(path)
        for path in files
        if path.name not in _NAMES_AND_TIMES
    }


def _name(path: Path, folder: Path) -> str:
    """Return a file's name; those of TensorBoard hold the time."""
    relative = path.relative_to(folder)
    return relative.parts[0] if relative.parts[0] == "tensorboard" else str(relative)


def _content(path: Path) -> object:
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.name == "manifest.json":
        return json.loads(path.read_text())["data"]
    if path.name == "summary.json":
        return _timeless(json.loads(path.read_text()))
    return None if "tensorboard" in path.parts else path.read_bytes()


def _timeless(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: _timeless(v) for k, v in value.items() if "seconds" not in k}


def refused_replies(found: Did) -> int:
    """Return how many replies of a run were not used."""
    rounds: Any = found.get("rounds.jsonl", [])
    return sum(row["replies_rejected"] for row in rounds)
