"""What models are trained for, and how they are scored: one declaration per task.

A task says what labels look like, which losses clients can minimise, which scores its
models have, and which file computes them. A score says its unit and which direction is
better. All else follows: columns of ``clients.jsonl`` and ``rounds.jsonl``, comparisons,
choices of models, and the table of ``docs/how-to/tasks_and_scores.md``.

This module declares, and imports neither torch nor scikit-learn. The file that
:attr:`Task.module` names computes; :mod:`fedsuite.training.loop` says what it holds.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

from fedsuite.core.errors import ConfigError

PER_CENT = "%"

MOST_DIGITS = 6
"""Most digits behind the point of a number whose unit nobody knows."""

Labels = Literal["class", "labels", "number", "time and event"]
"""What stands for a row: one class; 0 or 1 for each of several labels; a number; a time of
follow-up, and 1 where the event was seen, 0 where the row is censored."""


@dataclass(frozen=True)
class Score:
    """A number that tells how good a model is on some rows.

    Parameters
    ----------
    name
        Name in replies and keys; with underscores the column of ``clients.jsonl``.
    title
        Words for tables.
    higher
        Whether more is better.
    unit
        Unit of what is shown: :data:`PER_CENT` for fractions, which files hold as such;
        empty for that of the target.
    least, largest
        What it can be, in the files' unit.
    """

    name: str
    title: str
    higher: bool = True
    unit: str = PER_CENT
    least: float = 0.0
    largest: float = 1.0

    @property
    def column(self) -> str:
        """Column of ``clients.jsonl``."""
        return self.name.replace("-", "_")

    @property
    def heading(self) -> str:
        """The title as a sentence begins."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def label(self) -> str:
        """Title and unit, for an axis or a heading."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def points(self) -> str:
        """What a difference of two such numbers is counted in."""
        return "points" if self.unit == PER_CENT else self.unit

    @property
    def factor(self) -> float:
        """What a number of the files is multiplied by to be shown."""
        return 100.0 if self.unit == PER_CENT else 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest number that is shown."""
        return self.factor * self.least, self.factor * self.largest

    def digits(self, shown: float) -> int:
        """Return how many digits behind the point numbers as large as this one need.

        Two of per cent. Of other units four digits in all, for a target may be tiny.
        """
        size = abs(shown)
        if self.unit == PER_CENT or not size or not math.isfinite(size):
            return 2
        return min(max(3 - math.floor(math.log10(size)), 2), MOST_DIGITS)

    def gain(self, difference: float) -> float:
        """Return a difference with the sign by which more is better."""
        return difference if self.higher else -difference

    def shown(self, value: float) -> str:
        """Return a number of the files in words: ``62.50 %``, else four digits."""
        if self.unit == PER_CENT:
            return f"{self.factor * value:.2f} {self.unit}"
        return f"{value:.4g} {self.unit}".rstrip()

    def can_be(self, value: float) -> bool:
        """Return whether a number can be this score; NaN cannot."""
        return math.isfinite(value) and self.least <= value <= self.largest


def _error(name: str, title: str) -> Score:
    return Score(name, title, higher=False, unit="", largest=math.inf)


ACCURACY = Score("accuracy", "accuracy")

SCORES: Mapping[str, Score] = MappingProxyType(
    {
        score.name: score
        for score in (
            ACCURACY,
            Score("balanced-accuracy", "balanced accuracy"),
            Score("macro-f1", "macro F1"),
            Score("micro-f1", "micro F1"),
            Score("auroc", "AUROC"),
            Score("micro-auroc", "micro AUROC"),
            Score("auprc", "AUPRC"),
            Score("sensitivity", "sensitivity"),
            Score("specificity", "specificity"),
            Score("brier", "Brier score", higher=False),
            Score("calibration-error", "calibration error", higher=False),
            _error("mae", "MAE"),
            _error("rmse", "RMSE"),
            Score("r2", "R2", least=-math.inf),
            Score("coverage-error", "coverage error", higher=False),
            Score("concordance", "concordance"),
            Score("integrated-brier", "integrated Brier score", higher=False),
        )
    }
)
"""All scores by name."""


@dataclass(frozen=True)
class Task:
    """What models are trained for.

    Parameters
    ----------
    name
        Value of the key ``task``.
    labels
        What stands for a row.
    losses
        Values of the key ``loss``; the first is the default.
    scores
        Values of the key ``scores``; the first is the main score, by which models are
        chosen unless a key names another.
    short
        The scores of ``scores = "auto"``.
    module
        File that computes losses and scores; see :mod:`fedsuite.training.loop`.
    lists
        Further values of the key ``scores``, which are several numbers and no one score.
    """

    name: str
    labels: Labels
    losses: tuple[str, ...]
    scores: tuple[str, ...]
    short: tuple[str, ...]
    module: str
    lists: tuple[str, ...] = ()

    def chosen(self, text: str) -> tuple[str, ...]:
        """Return the scores that a value of the key ``scores`` names.

        Where rows have classes the accuracy is one of them, named or not.

        Raises
        ------
        ValueError
            Naming a score that the task does not have.
        """
        names = [name.strip() for name in text.split(",") if name.strip()]
        names = list(self.short) if names in ([], ["auto"]) else names
        for name in names:
            if name not in (*self.scores, *self.lists):
                raise ValueError(
                    f"{name!r} is no score of task {self.name}: expected some of "
                    f"{', '.join((*self.scores, *self.lists))}"
                )
        always = (ACCURACY.name,) if self.has_classes else ()
        return tuple(dict.fromkeys((*always, *names)))

    def main_of(self, text: str) -> Score:
        """Return the score to choose by, of those that ``scores`` names."""
        names = self.chosen(text)
        return next((SCORES[name] for name in self.scores if name in names), self.main)

    @property
    def main(self) -> Score:
        """The score by which models are chosen."""
        return SCORES[self.scores[0]]

    @property
    def has_classes(self) -> bool:
        """Whether each row has one class, and a model one logit per class."""
        return self.labels == "class"

    @property
    def has_own_width(self) -> bool:
        """Whether a model's outputs are as many as the loss says, not as the labels."""
        return self.labels == "time and event"


BALANCED = "balanced"
"""Value of the key ``class-weights``."""

CONFUSION = "confusion-matrix"
"""Value of the key ``scores``: how many rows of each class are taken for each class."""

BY_LABEL = "by-label"
"""Value of the key ``scores``: AUROC and F1 of each label."""

ONE_CLASS = "one-class"
"""Metric of a model that takes all rows for one class, not all rightly: that class."""

LOG_HAZARD_RATIO = "log hazard ratio"
"""What the one output of a Cox model is."""

_OF_CLASSES = (
    "accuracy",
    "balanced-accuracy",
    "macro-f1",
    "auroc",
    "auprc",
    "brier",
    "calibration-error",
)

_OF_TWO_CLASSES = tuple(name for name in _OF_CLASSES if not name.startswith("au"))

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            Task(
                "classification",
                "class",
                ("cross-entropy", "focal"),
                _OF_CLASSES,
                ("accuracy",),
                "fedsuite.training.classes",
                (CONFUSION,),
            ),
            Task(
                "binary",
                "class",
                ("cross-entropy", "focal"),
                ("auroc", "auprc", "sensitivity", "specificity", *_OF_TWO_CLASSES),
                ("accuracy", "auroc", "auprc"),
                "fedsuite.training.classes",
                (CONFUSION,),
            ),
            Task(
                "multi-label",
                "labels",
                ("binary-cross-entropy",),
                ("auroc", "micro-auroc", "macro-f1", "micro-f1"),
                ("auroc", "macro-f1"),
                "fedsuite.training.labels",
                (BY_LABEL,),
            ),
            Task(
                "regression",
                "number",
                ("squared", "absolute", "huber", "quantile"),
                ("mae", "rmse", "r2", "coverage-error"),
                ("mae", "rmse", "r2"),
                "fedsuite.training.numbers",
            ),
            Task(
                "survival",
                "time and event",
                ("cox", "discrete-time"),
                ("concordance", "integrated-brier"),
                ("concordance",),
                "fedsuite.training.survival",
            ),
        )
    }
)
"""All tasks by name."""

CLASSIFICATION = TASKS["classification"]

OF_CLASSES = frozenset(name for name, task in TASKS.items() if task.has_classes)
"""Tasks whose rows have one class each, and whose models have a logit for each class."""

LOSSES: tuple[str, ...] = tuple(
    dict.fromkeys(loss for task in TASKS.values() for loss in task.losses)
)
"""All losses by name."""

_BY_COLUMN = {score.column: score for score in SCORES.values()}
_MEASURES = ("_mean", "_median", "_worst10", "_variance")
_MODELS_AND_ROWS = re.compile(
    "(?:(?:global|trained|refreshed|plain_mean|validation|whole_test|prototype)_)+"
)


CONFUSION_COLUMN = re.compile("confusion_([0-9]+)_([0-9]+)$")
"""Column of a cell of a client's confusion matrix: rows by class and predicted class."""

_CELLS = re.compile("confusion-[0-9]+-[0-9]+|label-(?:auroc|f1)-[0-9]+")


def is_told_score(name: str) -> bool:
    """Return whether a metric is a score, one of a list of scores, or says one class."""
    return name in SCORES or name == ONE_CLASS or bool(_CELLS.fullmatch(name))


def interval_times(text: str) -> tuple[float, ...]:
    """Return the numbers of the key ``interval-ends``."""
    try:
        ends = tuple(float(part) for part in text.split(","))
    except ValueError:
        ends = ()
    rising = all(a < b for a, b in zip((0.0, *ends), ends, strict=False))
    if not ends or not rising or not math.isfinite(ends[-1]):
        raise ConfigError(
            f"key interval-ends = {text!r}: expected rising times above 0, such as "
            "'365, 730, 1095', which end the intervals of loss = 'discrete-time'"
        )
    return ends


@cache
def score_of_column(column: str) -> Score | None:
    """Return the score in a column of ``clients.jsonl``; None where it holds none.

    Prefixes such as ``validation_`` say of which model and rows it is.
    """
    return _BY_COLUMN.get(column) or _BY_COLUMN.get(_MODELS_AND_ROWS.sub("", column))


@cache
def score_of_metric(metric: str) -> Score | None:
    """Return the score that a metric of ``rounds.jsonl`` is a mean or the like of.

    None where it is of none, or is a variance, of which less is better.
    """
    column = re.sub("^(?:evaluate|train)_", "", metric)
    for measure in _MEASURES[:3]:
        column = column.removesuffix(measure)
    return score_of_column(column)
