"""The apps of this folder: the one changed line, and a run of them in this process.

Each is a whole Flower app, as ``flwr run`` takes it, and knows nothing of fedsuite.
"""

import contextlib
import difflib
import importlib
import importlib.util
import io
import itertools
import logging
import os
import re
import shutil
import sys
import tomllib
from ast import literal_eval
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedsuite import strategies
from fedsuite.engines.local import LocalGrid
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
        An argument of the strategy in ``server_app.py``; more go behind it.
    steps
        Local steps in a round.
    loss
        What its clients call the loss of training.
    needs
        Modules that are in the extra ``strangers`` alone.
    """

    name: str
    argument: str
    steps: int
    loss: str = "train_loss"
    needs: tuple[str, ...] = ()

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
def imported(folder: Path, package: str) -> Iterator[tuple[Any, Any]]:
    """Give ServerApp and ClientApp of a folder, in which the process works meanwhile."""
    before, home = set(sys.modules), os.getcwd()
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    try:
        server = importlib.import_module(f"{package}.server_app")
        client = importlib.import_module(f"{package}.client_app")
        yield server.app, client.app
    finally:
        os.chdir(home)
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == package:
                del sys.modules[name]


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
