"""A run's main score: the number of each client that comparisons and reports are about.

Everything that is printed or drawn of a score takes its name, unit, scale and direction
from here, and no page says accuracy by itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedsuite.core.keys import AUTO, Value
from fedsuite.core.tasks import ACCURACY as DECLARED_ACCURACY
from fedsuite.core.tasks import CLASSIFICATION, PER_CENT, TASKS, Task, score_of_column
from fedsuite.core.tasks import Score as DeclaredScore
from fedsuite.data import DATASETS

ACCURACY = DECLARED_ACCURACY.column

MOST_DIGITS = 6
"""Most digits behind the point of a number whose unit nobody knows."""


@dataclass(frozen=True)
class Score:
    """A column of ``clients.jsonl``, and how people read it.

    Parameters
    ----------
    column
        The column, of rows of the phase ``evaluate``.
    name
        The score in words.
    unit
        Unit of what is shown; empty for none.
    scale
        What a number in the column is multiplied by to be shown.
    bounds
        The least and the largest number that is shown; None is no bound.
    higher_is_better
        Direction.
    """

    column: str = ACCURACY
    name: str = ACCURACY
    unit: str = "%"
    scale: float = 100.0
    bounds: tuple[float | None, float | None] = (0.0, 100.0)
    higher_is_better: bool = True

    @property
    def title(self) -> str:
        """The name as a sentence begins."""
        return self.name[:1].upper() + self.name[1:]

    @property
    def label(self) -> str:
        """Name and unit, for an axis or a heading."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def points(self) -> str:
        """What a difference of two such numbers is counted in."""
        return {"%": "points", "": ""}.get(self.unit, self.unit)

    @property
    def limits(self) -> tuple[float, float] | None:
        """Ends of an axis that shows all of a bounded score; None of an unbounded one."""
        low, high = self.bounds
        if low is None or high is None:
            return None
        return low - 0.02 * (high - low), high + 0.02 * (high - low)

    def counts(self, value: float) -> bool:
        """Return whether a number in the column is a score."""
        low, high = self.bounds
        shown = self.scale * value
        return (low is None or shown >= low) and (high is None or shown <= high)

    def digits(self, shown: float) -> int:
        """Return how many digits behind the point numbers as large as this one need.

        Two of per cent. Of other units four digits in all, for a target may be tiny.
        """
        size = abs(shown)
        if self.unit == PER_CENT or not size or not math.isfinite(size):
            return 2
        return min(max(3 - math.floor(math.log10(size)), 2), MOST_DIGITS)

    def shown(self, number: float) -> str:
        """Return a number, as it is shown, in words for a tile."""
        digits = 1 if self.unit == PER_CENT else self.digits(number)
        return f"{number:.{digits}f} {self.unit}".rstrip()

    def gain(self, difference: float) -> float:
        """Return a difference with the sign by which more is better."""
        return difference if self.higher_is_better else -difference


def score_of(column: str = ACCURACY) -> Score:
    """Return how the score of a column is read; one that is not declared is an accuracy."""
    declared = score_of_column(column) or DECLARED_ACCURACY
    before = column.removesuffix(declared.column)
    name = before.replace("_", " ") + declared.title if before != column else column
    low, high = (
        None if math.isinf(bound) else declared.factor * bound
        for bound in (declared.least, declared.largest)
    )
    return Score(
        column,
        name,
        unit=declared.unit,
        scale=declared.factor,
        bounds=(low, high),
        higher_is_better=declared.higher,
    )


def task_of(experiment: Mapping[str, Value]) -> Task:
    """Return the task of an experiment; classification where nobody knows it."""
    name, dataset = (str(experiment.get(key, AUTO)) for key in ("task", "dataset"))
    if name == AUTO and dataset in DATASETS.ours:
        name = DATASETS.ours[dataset].task
    return TASKS.get(name, CLASSIFICATION)


def main_score(experiment: Mapping[str, Value]) -> DeclaredScore:
    """Return the score that a run is shown by: that by which ``auto`` chooses models."""
    task = task_of(experiment)
    try:
        return task.main_of(str(experiment.get("scores", AUTO)))
    except ValueError:  # the folder of another fedsuite
        return task.main
