"""The suite of a leaderboard: problems, methods and budget, read from one TOML file.

::

    trials = 10
    objective = "mean"
    tuning-seeds = [101, 102, 103]
    seeds = [1, 2, 3, 4, 5]
    baseline = "fedavg"
    own-baselines = ["standalone", "fedavg-ft"]
    placebos = { placebo = "fedavg" }

    [methods]
    fedavg = {}
    fedavg-ft = {}
    standalone = {}
    fedavgm = { method = "fedavg", server-momentum = 0.9 }
    placebo = { method = "fedprox", proximal-mu = 1e-6 }
    fedlc = { method = "fedavg", logit-calibration = 1.0, tune = ["logit-calibration"] }

    [problems.digits]
    title = "Handwritten digits, 10 clients, Dirichlet 0.5"
    methods = ["fedavg", "fedavg-ft"]   # default: all
    seeds = [1, 2, 3]                   # default: the suite's, as for all keys but methods
    [problems.digits.experiment]
    dataset = "digits"
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.metrics import tail_words
from fedsuite.core.text import read_toml
from fedsuite.experiment.shipped import find_experiment
from fedsuite.sweeps.points import OWN_KEYS
from fedsuite.sweeps.trials import (
    DEFAULT_FRACTION,
    VALIDATION,
    Contender,
    Objective,
    objective_of,
)

COMPULSORY = ("fedavg", "standalone", "fedavg-ft")
"""Rows that every leaderboard has."""

TUNE = "tune"
"""Keys to tune beside the learning rate and the method's own."""

_SHARED = {
    "baseline": "fedavg",
    "own-baselines": ["standalone", "fedavg-ft"],
    "trials": 10,
    "tuning-seeds": [101, 102, 103],
    "seeds": [1, 2, 3, 4, 5],
}
"""Defaults of the keys that a suite may have for all problems, and a problem for itself."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_SUITE_KEYS = {*_SHARED, "objective", "placebos", "methods", "problems"}
_PROBLEM_KEYS = {*_SHARED, "title", "methods", "experiment"}


@dataclass(frozen=True)
class Problem:
    """One problem of a suite.

    Parameters
    ----------
    name, title
        Name of its folder, and heading.
    base
        The experiment that all contenders share.
    contenders
        Who takes part, in the order of the suite.
    trials
        Trials of the tuning per contender.
    tuning_seeds, seeds
        Seeds of each trial's runs, and of the final runs.
    baseline
        Contender that shared models are compared with.
    own_baselines
        Contenders of which the one with the best validation score is what clients' own
        models are compared with.
    """

    name: str
    title: str
    base: Mapping[str, Value]
    contenders: tuple[Contender, ...]
    trials: int
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    baseline: str
    own_baselines: tuple[str, ...]

    @property
    def worst(self) -> str:
        """Name of the mean of the worst tenth, which is one client of ten or fewer."""
        return tail_words("worst", 10, int(self.base.get("num-clients", 10)))


@dataclass(frozen=True)
class Suite:
    """Problems, methods and budget of a leaderboard.

    Parameters
    ----------
    name
        Name of the file.
    problems
        The problems.
    objective
        As for :class:`~fedsuite.sweeps.tune.Budget`.
    placebos
        Contenders that change nothing of weight, with the one that each imitates: their
        difference is noise.
    digest
        SHA-256 (hex, 16 digits) of the suite's content.
    """

    name: str
    problems: tuple[Problem, ...]
    objective: Objective
    placebos: Mapping[str, str]
    digest: str


def read_suite(path: Path) -> Suite:
    """Read a suite.

    Raises
    ------
    ConfigError
        If the file cannot be read, or its content is no suite.
    """
    try:
        content = read_toml(find_experiment(path))
    except OSError as error:
        raise ConfigError(f"cannot read suite {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"suite {path} is not valid TOML: {error}") from error
    try:
        return _suite(path.name, content)
    except ConfigError as error:
        raise ConfigError(f"suite {path}: {error}") from None


def _suite(name: str, content: Mapping[str, Any]) -> Suite:
    _only(content, _SUITE_KEYS, "the suite")
    contenders = {
        title: _contender(title, table)
        for title, table in _table(content, "methods").items()
    }
    for title in contenders:
        if not _NAME.fullmatch(title):
            raise ConfigError(f"methods: name {title!r}: expected small letters and dashes")
    missing = [title for title in COMPULSORY if title not in contenders]
    if missing:
        raise ConfigError(f"methods: {', '.join(missing)} must be there: add it as a row")
    placebos = dict(content.get("placebos", {}))
    for name in (*placebos, *placebos.values()):
        if name not in contenders:
            known = ", ".join(contenders)
            raise ConfigError(f"placebos: {name!r}: expected some of {known}")
    shared = {key: content.get(key, default) for key, default in _SHARED.items()}
    problems = tuple(
        _problem(title, {**shared, **table}, contenders)
        for title, table in _table(content, "problems").items()
    )
    text = json.dumps(content, sort_keys=True)
    return Suite(
        name,
        problems,
        objective_of(str(content.get("objective", "mean"))),
        placebos,
        hashlib.sha256(text.encode()).hexdigest()[:16],
    )


def _contender(title: str, table: Any) -> Contender:
    where = f"methods.{title}"
    entry = dict(table) if isinstance(table, dict) else table
    tuned = entry.pop(TUNE, []) if isinstance(entry, dict) else []
    if not isinstance(tuned, list) or not all(isinstance(name, str) for name in tuned):
        raise ConfigError(f"{where}: {TUNE} = {tuned!r}: expected a list of keys")
    return Contender(title, {"method": title, **_values(where, entry)}, tuple(tuned))


def _problem(
    name: str,
    table: Mapping[str, Any],
    contenders: Mapping[str, Contender],
) -> Problem:
    where = f"problems.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: expected a name of small letters and dashes")
    _only(table, _PROBLEM_KEYS, where)
    titles = table.get("methods", list(contenders))
    unknown = [title for title in titles if title not in contenders]
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]!r} does not stand in [methods]")
    roles = {"baseline": [table["baseline"]], "own-baselines": table["own-baselines"]}
    for role, names in roles.items():
        if absent := [name for name in names if name not in titles]:
            raise ConfigError(f"{where}: {role} {absent[0]!r} does not take part")
    trials = table["trials"]
    if not isinstance(trials, int) or trials < 1:
        raise ConfigError(f"{where}: trials = {trials!r}: expected a whole number above 0")
    base = _values(where, _table(table, "experiment"))
    for key in ("method", *sorted(OWN_KEYS)):
        if key in base:
            raise ConfigError(f"{where}: the leaderboard sets {key} itself: leave it out")
    seeds, tuning_seeds = _seeds(table["seeds"]), _seeds(table["tuning-seeds"])
    if common := set(seeds) & set(tuning_seeds):
        raise ConfigError(
            f"{where}: seed {min(common)} is among seeds and tuning-seeds: choose others"
        )
    if not base.get(VALIDATION):
        base[VALIDATION] = DEFAULT_FRACTION
    return Problem(
        name,
        str(table.get("title", name)),
        {"report": False, "fresh-test-split": True, **base},
        tuple(contender for title, contender in contenders.items() if title in titles),
        trials,
        tuning_seeds,
        seeds,
        table["baseline"],
        tuple(table["own-baselines"]),
    )


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: key {key!r}: expected {', '.join(sorted(known))}")


def _table(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = content.get(name)
    if not isinstance(table, dict) or not table:
        raise ConfigError(f"{name}: expected a table with at least one entry")
    return table


def _values(where: str, table: object) -> dict[str, Value]:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table of keys and values")
    for key, value in table.items():
        if not isinstance(value, bool | int | float | str):
            raise ConfigError(f"{where}: key {key} = {value!r}: expected one value")
    return dict(table)


def _seeds(numbers: Sequence[object]) -> tuple[int, ...]:
    seeds = tuple(seed for seed in numbers if isinstance(seed, int) and seed >= 0)
    if not seeds or len(set(seeds)) != len(numbers):
        raise ConfigError(f"seeds = {numbers}: expected different whole numbers from 0")
    return seeds
