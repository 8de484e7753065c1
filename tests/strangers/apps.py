"""The apps of this folder: changed by a line, or unchanged, and what a run leaves behind.

Each is a whole Flower app, as ``flwr run`` takes it, and knows nothing of fedsuite.
"""

import contextlib
import difflib
import importlib
import importlib.util
import io
import itertools
import json
import logging
import math
import re
import shutil
import sys
import time
import tomllib
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from safetensors.numpy import load_file

import fedsuite
from fedsuite import strategies
from fedsuite.engines.flower import ask_outcome, connect, follow_run, start_superlink
from fedsuite.engines.local import LocalGrid
from fedsuite.engines.processes import POLL_INTERVAL, World
from fedsuite.workarounds.identity import flower_identity

FOLDER = Path(__file__).parent
STOCK = "from flwr.serverapp.strategy import FedAvg"


@dataclass(frozen=True)
class StrangerApp:
    """An app of this folder.

    Parameters
    ----------
    name
        Its folder.
    argument
        An argument of the strategy in ``server_app.py``; more go behind it. Empty where
        there is no FedAvg whose place another strategy could take.
    steps
        Local steps in a round.
    loss
        What its clients call the loss of training.
    needs
        Modules that are in the extra ``strangers`` alone.
    nodes
        Nodes of a run that is compared. Two, unless the app sums in one order itself: two
        models have one mean, whichever comes first.
    seeds
        Whether it seeds what it draws, so that two runs are alike.
    """

    name: str
    argument: str = ""
    steps: int = 0
    loss: str = "train_loss"
    needs: tuple[str, ...] = ()
    nodes: int = 2
    seeds: bool = True

    @property
    def package(self) -> str:
        """Name of the app's package."""
        [found] = (FOLDER / self.name).glob("*/__init__.py")
        return found.parent.name

    @property
    def config(self) -> dict[str, Any]:
        """The app's own run config."""
        project = tomllib.loads((FOLDER / self.name / "pyproject.toml").read_text())
        return dict(project["tool"]["flwr"]["app"]["config"])

    def skip_unless_installed(self) -> None:
        """Skip the test, and say so, where the extra is not installed."""
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                pytest.skip(
                    f"the app {self.name} needs {module}, which is not installed: "
                    "run pip install -e '.[dev,strangers]'"
                )


PYTORCH = StrangerApp("quickstart-pytorch", "fraction_evaluate=fraction_evaluate", steps=15)
SKLEARN = StrangerApp(
    "quickstart-sklearn", "fraction_evaluate=1.0", steps=3, loss="train_logloss"
)
NUMPY = StrangerApp("quickstart-numpy", "fraction_evaluate=1.0", steps=10)
METRICS = StrangerApp("own-metrics", 'weighted_by_key="samples"', steps=5)
LOOP = StrangerApp("own-loop", "fraction_evaluate=0.5", steps=15)
LORA = StrangerApp(
    "flowertune-lora",
    "fraction_evaluate=0.0",
    steps=8,
    needs=("transformers", "peft"),
)
APPS = (PYTORCH, SKLEARN, NUMPY, METRICS, LOOP, LORA)
"""Apps that a strategy of fedsuite fits into."""

PANDAS = StrangerApp("quickstart-pandas", nodes=3)
MODS = StrangerApp("custom-mods")
PRIVATE = StrangerApp("private-averaging")
STOPPING = StrangerApp("save-and-stop")
XGBOOST = StrangerApp("quickstart-xgboost", needs=("xgboost",))
LEGACY = StrangerApp("legacy-numpy")
TWO_PHASES = StrangerApp("two-phase-loop", nodes=3)
UNRELIABLE = StrangerApp("unreliable-nodes", nodes=4, seeds=False)
SIMULATED = (
    *APPS,
    *(PANDAS, MODS, PRIVATE, STOPPING, XGBOOST, LEGACY, TWO_PHASES, UNRELIABLE),
)
"""Apps that run as they are."""

TOLERANCES = {XGBOOST.name: 1e-5}
"""Largest relative difference of two runs of one app where it is not 0. Bagging keeps trees
in the order in which replies come, and adds up their votes in that order, as float32."""


def write_changed(app: StrangerApp, folder: Path, *changes: tuple[str, str]) -> int:
    """Copy an app into ``folder``, change it there, and count the changed lines.

    Parameters
    ----------
    changes
        Pairs of text that the app must have once, and what takes its place.

    Returns
    -------
    int
        How many lines of all the app's files are not as they were.
    """
    shutil.copytree(FOLDER / app.name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for old, new in changes:
        [path] = [file for file in folder.rglob("*.py") if old in file.read_text()]
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))
    changed = 0
    for file in folder.rglob("*.*"):
        before = (FOLDER / app.name / file.relative_to(folder)).read_text().splitlines()
        compared = difflib.ndiff(before, file.read_text().splitlines())
        changed += sum(line.startswith("- ") for line in compared)
    return changed


def swap(strategy: str) -> tuple[str, str]:
    """Return the change of the one line that puts a strategy in FedAvg's place."""
    name = strategy if strategy == "FedAvg" else f"{strategy} as FedAvg"
    return STOCK, f"from fedsuite.strategies import {name}"


def changes_for(app: StrangerApp, strategy: str) -> list[tuple[str, str]]:
    """Return the changes that put a strategy into an app, a line each."""
    values = {
        "loss_key": app.loss,
        "loss_before_key": app.loss,
        "local_steps": app.steps,
        "learning_rate": 0.1,
    }
    needed = getattr(strategies, strategy).NEEDS_OF_CLIENT.metrics
    words = [metric.keyword for metric in needed]
    if app.loss == "train_loss" and "loss_key" in words:
        words.remove("loss_key")  # found by Flower's own name
    if not words:
        return [swap(strategy)]
    more = "".join(f", {word}={values[word]!r}" for word in words)
    return [swap(strategy), (app.argument, app.argument + more)]


class ListGrid(LocalGrid):
    """A local grid that answers with a list, as Flower's own do."""

    def send_and_receive(  # type: ignore[override]
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return list(super().send_and_receive(messages, timeout=timeout))


@contextlib.contextmanager
def forgotten(package: str) -> Iterator[None]:
    """Work in a folder's modules, which are then forgotten, and so is the folder."""
    paths = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in list(sys.modules):
            if name.partition(".")[0] == package:
                del sys.modules[name]


@contextlib.contextmanager
def imported(folder: Path, package: str) -> Iterator[tuple[Any, Any]]:
    """Give ServerApp and ClientApp of a folder, in which the process works meanwhile."""
    with contextlib.chdir(folder), forgotten(package):
        sys.path.insert(0, str(folder))
        server = importlib.import_module(f"{package}.server_app")
        client = importlib.import_module(f"{package}.client_app")
        yield server.app, client.app


def simulated(app: StrangerApp, folder: Path, **options: Any) -> dict[str, Any]:
    """Run an app as it is by ``fedsuite.simulate``, and return what it leaves behind.

    Parameters
    ----------
    folder
        New folder, in which the process works meanwhile.
    options
        More keywords of ``fedsuite.simulate``.
    """
    folder.mkdir()
    with contextlib.chdir(folder), forgotten(app.package):
        fedsuite.simulate(FOLDER / app.name, num_supernodes=app.nodes, **options)
    return left_in(folder)


def run_here(app: StrangerApp, folder: Path, num_nodes: int = 3) -> str:
    """Run an app in this process and return what Flower's logger wrote."""
    values, log, logger = app.config, io.StringIO(), logging.getLogger("flwr")
    handler = logging.StreamHandler(log)
    logger.addHandler(handler)
    try:
        with imported(folder, app.package) as (server, client), flower_identity():
            grid = ListGrid(client, num_nodes, values)
            server(grid, Context(1, 1, {}, RecordDict(), values))
    finally:
        logger.removeHandler(handler)
    return log.getvalue()


def tables(log: str) -> dict[str, dict[int, dict[str, str]]]:
    """Read the final tables that Flower logs: metrics by phase and round."""
    found = {}
    for phase, title in (
        ("train", "Aggregated ClientApp-side Train Metrics:"),
        ("evaluate", "Aggregated ClientApp-side Evaluate Metrics:"),
        ("server", "ServerApp-side Evaluate Metrics:"),
    ):
        _, there, rest = log.rpartition(title)
        assert there, f"no table of {phase}: {log[-2000:]}"
        text = re.sub(r"^INFO\s*:", "", rest, flags=re.MULTILINE).lstrip()
        depth = itertools.accumulate((c == "{") - (c == "}") for c in text)
        end = next(index for index, open_ in enumerate(depth) if open_ == 0)
        found[phase] = literal_eval(text[: end + 1])
    return found


_UNALIKE = ("README.md", "adapter_config.json")
"""Files of peft, which write sets of names in whatever order they come."""


def left_in(folder: Path) -> dict[str, Any]:
    """Read the files that an app left in the folder in which it worked."""
    readers: dict[str, Callable[[Path], Any]] = {
        ".npz": lambda path: dict(np.load(path)),
        ".pt": lambda path: {
            name: tensor.numpy()
            for name, tensor in torch.load(path, weights_only=True).items()
        },
        ".safetensors": load_file,
        ".json": lambda path: json.loads(path.read_text()),
        ".csv": lambda path: [*map(_row, path.read_text().splitlines())],
    }
    return {
        str(path.relative_to(folder)): readers.get(path.suffix, Path.read_text)(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in _UNALIKE
    }


def _row(line: str) -> list[Any]:
    """Return the numbers and words of a line of a table."""
    row: list[Any] = line.split(",")
    for place, word in enumerate(row):
        with contextlib.suppress(ValueError):
            row[place] = float(word)
    return row


def summary(left: Any) -> Any:
    """Return what a run left behind with the norms of arrays in place of them."""
    if isinstance(left, dict):
        return {key: summary(value) for key, value in left.items()}
    if isinstance(left, np.ndarray):
        return [*left.shape, float(np.linalg.norm(left.astype(float)))]
    return left


def difference(first: Any, second: Any) -> float:
    """Return the largest difference of numbers, over the larger of both; infinity else."""
    if isinstance(first, dict) and isinstance(second, dict):
        first, second = sorted(first.items()), sorted(second.items())
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            return math.inf
        return max(map(difference, first, second), default=0.0)
    if isinstance(first, str) or isinstance(second, str):
        return 0.0 if first == second else math.inf
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape or first.dtype != second.dtype:
        return math.inf
    if first.tobytes() == second.tobytes():
        return 0.0
    apart = np.abs(first.astype(float) - second)
    larger = np.maximum(np.abs(first), np.abs(second))
    return float(np.max(apart / np.where(larger == 0, 1, larger)))


class Flowers:
    """Flower's own simulation on Ray: one SuperLink, and ``flwr run`` for each app.

    Parameters
    ----------
    world
        Where its programs live.

    Attributes
    ----------
    seconds
        From ``flwr run`` to the last line of the last run's log.
    """

    seconds = 0.0

    def __init__(self, world: World) -> None:
        world.environment.setdefault(POLL_INTERVAL, "0.5")
        self._world = world
        self._superlink = start_superlink(world, ["--simulation"])
        connect(world, self._superlink)

    def run(self, app: Path, nodes: int) -> str:
        """Run an app and return its log."""
        lines: list[str] = []
        began = time.perf_counter()

        def take(line: str) -> None:
            lines.append(line)
            self.seconds = time.perf_counter() - began

        federation = f"num-supernodes={nodes} client-resources-num-cpus=1 "
        options = ["--federation-config", f"{federation}client-resources-num-gpus=0.0"]
        check = self._superlink.program.check_alive
        follow_run(self._world, app, take, check, options)
        outcome = ask_outcome(self._world)
        assert outcome is not None and outcome.completed
        return "\n".join(lines)

    def left_by(self, app: StrangerApp) -> dict[str, Any]:
        """Run a copy of an app and return what it left behind."""
        folder = self._world.folder / app.name
        write_changed(app, folder)
        # Its programs work in that folder, so that it must not go.
        for path in self._world.neutral.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.run(folder, app.nodes)
        return left_in(self._world.neutral)
