"""Experiment files: each can be built, and each command in its comments can be run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsuite.data import DATASETS
from fedsuite.experiment import Experiment, parse_assignment, read_file
from fedsuite.models import MODELS, build_model
from fedsuite.models.groups import parameter_groups
from fedsuite.server_app import build_strategy
from fedsuite.sweep_points import make_points
from tests.helpers import SOME_GROUPS

ROOT = Path(__file__).parents[1]
FILES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted(ROOT.glob("simulations/**/*.toml"))
    if path.name != "pyproject.toml"
]


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


COMMANDS = [(path, words) for path in FILES for words in commands(path)]


def test_there_is_something_to_check() -> None:
    assert "simulations/fedeba/cifar10/fedeba-plus.toml" in FILES
    swept = {path for path, words in COMMANDS if words[1] == "sweep"}
    assert {path for path in FILES if "/cifar10/" in path} <= swept


@pytest.mark.parametrize("path", FILES)
def test_file_can_be_built(path: str) -> None:
    experiment = Experiment.load(ROOT / path)
    dataset = DATASETS[experiment.text("dataset")]
    model = experiment.text("model")
    arguments = experiment.arguments(MODELS[model].keys)
    built = build_model(model, dataset.input_shape, dataset.num_classes, 0, **arguments)
    build_strategy(experiment, parameter_groups(built))


@pytest.mark.parametrize(
    ("path", "words"), COMMANDS, ids=[f"{p}-{' '.join(w[3:])}" for p, w in COMMANDS]
)
def test_command_in_a_comment_can_be_run(path: str, words: list[str]) -> None:
    assert words[0] == "fedsuite"
    assert words[1] in ("run", "sweep")
    assert words[2] == path
    given = dict(parse_assignment(text) for text in options(words, "--set"))
    base = {**read_file(ROOT / path), **given}
    seeds = int(next(options(words, "--seeds"), "1"))
    for point in make_points(base, list(options(words, "--grid")), seeds):
        build_strategy(
            Experiment.from_values({**base, **dict(point.settings)}), SOME_GROUPS
        )
    known = {"--set", "--grid", "--seeds", "--seed", "--output"}
    assert {word for word in words if word.startswith("--")} <= known


def test_outputs_of_sweeps_do_not_meet() -> None:
    outputs = [
        output
        for _, words in COMMANDS
        if words[1] == "sweep"
        for output in options(words, "--output")
    ]
    assert len(outputs) == len(set(outputs))
