"""Experiment files: each can be built, and each command in its comments can be run."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedsuite.core.keys import Value
from fedsuite.core.plug_ins import is_code
from fedsuite.data import DATASETS, DataSettings
from fedsuite.data.public import PublicData
from fedsuite.experiment.data_and_models import experiment_model
from fedsuite.experiment.experiment import Experiment, parse_assignment
from fedsuite.models.groups import ParameterGroups, parameter_groups
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts, server_networks
from fedsuite.sweeps.points import make_points
from fedsuite.sweeps.sweep import base_values
from fedsuite.sweeps.trials import Space
from simulations.leaderboard.suite import read_suite

ROOT = Path(__file__).parents[1]
FILES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted(ROOT.glob("simulations/**/*.toml"))
    if path.name != "pyproject.toml" and path.parent.name != "leaderboard"
]
SUITES = sorted(ROOT.glob("simulations/leaderboard/*.toml"))


def commands(path: str) -> list[list[str]]:
    """Return the words of each command in the comments of a file."""
    comments = [
        line.removeprefix("#") for line in (ROOT / path).read_text().splitlines() if line
    ]
    text = re.sub(r"\\\n\s*", "", "\n".join(comments))
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("fedsuite ")]


def options(words: list[str], name: str) -> Iterator[str]:
    """Return the values of an option."""
    return (words[i + 1] for i, word in enumerate(words) if word == name)


def skip_without_what_it_needs(experiment: Experiment) -> None:
    if is_code(experiment["dataset"]):
        pytest.skip("its rows alone say shape and classes: the page's own test runs it")


def without_rows(experiment: Experiment) -> Any:
    """Return what can be known of the experiment's data without reading it."""
    dataset = DATASETS[str(experiment["dataset"])]
    return SimpleNamespace(
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        holds_words=dataset.name == "reddit",
    )


def groups_of(experiment: Experiment) -> ParameterGroups:
    """Return the parts of the experiment's model, built without its data."""
    fixed = {"seed": 0, "method": "fedavg", "dataset": experiment["dataset"]}
    telling = ("model", "decomposition", "atoms", "fedpara")
    names = {key: experiment[key] for key in telling if key in experiment.values}
    return _groups(tuple(sorted({**fixed, **names}.items())))


@cache
def _groups(keys: tuple[tuple[str, Value], ...]) -> ParameterGroups:
    experiment = Experiment.from_values(dict(keys))
    return parameter_groups(experiment_model(experiment, without_rows(experiment)))


def parts_of(experiment: Experiment) -> ServerParts:
    """Return what the experiment's strategy needs, without its data."""
    dataset: Any = DATASETS[str(experiment["dataset"])]
    rows = experiment.group(DataSettings).public_size
    return ServerParts(
        groups_of(experiment),
        networks=_networks(experiment),
        public=PublicData(torch.zeros(rows, *dataset.input_shape)) if rows else None,
        num_classes=dataset.num_classes,
    )


def _networks(experiment: Experiment) -> ServerNetworks | None:
    if not experiment["client-models"] and not experiment.strategy.takes("networks"):
        return None
    names = ("client-models", "client-model-assignment", "num-clients", "model", "method")
    fixed = {"dataset": experiment["dataset"], "public-size": experiment["public-size"]}
    told = {key: experiment[key] for key in names} | fixed
    return _networks_of(tuple(sorted(told.items())))


@cache
def _networks_of(keys: tuple[tuple[str, Value], ...]) -> ServerNetworks:
    experiment = Experiment.from_values(dict(keys))
    return server_networks(experiment, without_rows(experiment))


def build(experiment: Experiment) -> None:
    skip_without_what_it_needs(experiment)
    build_strategy(experiment, parts_of(experiment))


COMMANDS = [(path, words) for path in FILES for words in commands(path)]


def test_there_is_something_to_check() -> None:
    assert "simulations/fedeba/cifar10/fedeba-plus.toml" in FILES
    swept = {path for path, words in COMMANDS if words[1] == "sweep"}
    assert {path for path in FILES if "/cifar10/" in path} <= swept


@pytest.mark.parametrize("path", FILES)
def test_file_can_be_built(path: str) -> None:
    build(Experiment.load(ROOT / path))


@pytest.mark.parametrize(
    ("path", "words"), COMMANDS, ids=[f"{p}-{' '.join(w[3:])}" for p, w in COMMANDS]
)
def test_command_in_a_comment_can_be_run(
    path: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words[0] == "fedsuite"
    assert words[1] in ("run", "sweep")
    assert words[2] == path
    given = dict(parse_assignment(text) for text in options(words, "--set"))
    if words[1] == "run":
        build(Experiment.load(ROOT / path, given))
        return
    assert all(int(seeds) > 0 for seeds in options(words, "--seeds"))
    base = base_values(ROOT / path, given)
    made: list[Experiment] = []

    def noted(values: dict[str, Value], overridden: tuple[str, ...]) -> Experiment:
        made.append(Experiment.from_values(values, overridden))
        return made[-1]

    checked = SimpleNamespace(from_values=noted)
    monkeypatch.setattr("fedsuite.sweeps.points.Experiment", checked)
    # All seeds of a point are built alike.
    points = make_points(base, list(options(words, "--grid")), range(1))
    assert len(made) == len(points) > 0
    for experiment in made:
        build(experiment)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.name)
def test_every_method_of_a_suite_can_run_on_its_problem(path: Path) -> None:
    for problem in read_suite(path).problems:
        for contender in problem.contenders:
            space = Space.of(contender, problem.base)
            space.trial(1, (0,), space.draw(1, 0.1))


def test_options_of_the_commands_are_known() -> None:
    known = {"--set", "--grid", "--seeds", "--seed", "--output", "--workers"}
    used = {word for _, words in COMMANDS for word in words if word.startswith("--")}
    assert used <= known


def test_outputs_of_sweeps_do_not_meet() -> None:
    outputs = [
        output
        for _, words in COMMANDS
        if words[1] == "sweep"
        for output in options(words, "--output")
    ]
    assert len(outputs) == len(set(outputs))
