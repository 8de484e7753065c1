"""A run's main score: the number of each client that comparisons and reports are about.

Everything that is printed or drawn of a score takes its name, unit, scale and direction
from here, and no page says accuracy by itself.
"""

import math
from dataclasses import dataclass

from fedsuite.core.tasks import ACCURACY as DECLARED_ACCURACY
from fedsuite.core.tasks import score_of_column

ACCURACY = DECLARED_ACCURACY.column


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
    def label(self) -> str:
        """Name and unit, for an axis or a heading."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def heading(self) -> str:
        """The label as a sentence begins, with the direction where less is better."""
        better = "" if self.higher_is_better else ", less is better"
        return self.label[:1].upper() + self.label[1:] + better

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
