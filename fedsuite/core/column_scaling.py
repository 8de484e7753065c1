"""Means and deviations of a table's columns, from one exchange of sums.

Each client adds up its training rows: by column the number of values, their mean, and the
sum of squares around this mean. These say what a count, a sum and a sum of squares say, and
large numbers of little spread lose no digits in them. The pool's mean and variance follow
(Chan, Golub and LeVeque, 1979), client by client in their order.

A client adds up exactly (:func:`math.fsum`), so that the same rows give the same bits on
every machine. A column with fewer values than the client's ``least_rows`` is left out of
its sums: those of a few people would tell of each.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError

Floats = npt.NDArray[np.float32]

LEAST_ROWS = 10
"""Rows below which a site tells no sums, unless its operator says otherwise."""


@dataclass(frozen=True)
class ColumnSums:
    """Sums over the rows of one client, or of several, by column.

    Parameters
    ----------
    counts
        Values that are there.
    means
        Their mean, 0 without any.
    squares
        Sum of the squared distances from that mean.
    """

    counts: tuple[int, ...]
    means: tuple[float, ...]
    squares: tuple[float, ...]

    @classmethod
    def of(cls, values: npt.NDArray[Any], least_rows: int = 1) -> "ColumnSums":
        """Add up the columns of ``[rows, columns]``; NaN is a missing value."""
        counts, means, squares = [], [], []
        for column in values.T:
            numbers = column[~np.isnan(column)].astype(np.float64).tolist()
            if len(numbers) < max(least_rows, 1):
                numbers = []
            mean = math.fsum(numbers) / len(numbers) if numbers else 0.0
            counts.append(len(numbers))
            means.append(mean)
            squares.append(math.fsum((number - mean) ** 2 for number in numbers))
        return cls(tuple(counts), tuple(means), tuple(squares))

    def __add__(self, other: "ColumnSums") -> "ColumnSums":
        parts = zip(*_columns(self), *_columns(other), strict=True)
        added = [_merged(*part) for part in parts]
        counts, means, squares = zip(*added, strict=True) if added else ((), (), ())
        return ColumnSums(counts, means, squares)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "ColumnSums":
        """Read what :meth:`to_dict` wrote; refuse what are no such sums.

        Raises
        ------
        DataError
            If it holds anything else.
        """
        try:
            counts = tuple(int(count) for count in told["counts"])
            means = tuple(float(mean) for mean in told["means"])
            squares = tuple(float(square) for square in told["squares"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DataError("sums of columns are no numbers") from None
        finite = all(map(math.isfinite, (*means, *squares)))
        if not finite or min((*counts, *squares), default=0) < 0:
            raise DataError("sums of columns are negative or not finite")
        if not len(counts) == len(means) == len(squares):
            raise DataError("sums of columns are of several lengths")
        return cls(counts, means, squares)

    def to_dict(self) -> dict[str, list[float]]:
        """Return the sums as lists."""
        lists = {"means": list(self.means), "squares": list(self.squares)}
        return {"counts": [*self.counts], **lists}


def _columns(sums: ColumnSums) -> tuple[Sequence[float], ...]:
    return sums.counts, sums.means, sums.squares


def _merged(
    count: float, mean: float, square: float, count_2: float, mean_2: float, square_2: float
) -> tuple[int, float, float]:
    total = int(count + count_2)
    if not count_2 or not count:
        return (total, mean_2, square_2) if not count else (total, mean, square)
    step = mean_2 - mean
    merged = mean + step * count_2 / total
    return total, merged, square + square_2 + step * step * count * count_2 / total


@dataclass(frozen=True)
class ColumnScaling:
    """What is done to columns of numbers: missing values become means, and all are scaled.

    Parameters
    ----------
    rule
        ``federated`` takes off the mean and divides by the deviation; ``none`` fills
        missing values alone.
    means, deviations
        Of all clients' training rows, by column. A column that never changes has 1.
    """

    rule: Literal["none", "federated"]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @classmethod
    def from_sums(
        cls, rule: Literal["none", "federated"], clients: Iterable[ColumnSums]
    ) -> "ColumnScaling":
        """Return the scaling of the clients' sums, in the clients' order.

        Raises
        ------
        DataError
            If a column has no value at any client that tells its sums.
        """
        total: ColumnSums | None = None
        for sums in clients:
            if total is not None and len(total.counts) != len(sums.counts):
                raise DataError(
                    f"sums of {len(sums.counts)} columns beside those of "
                    f"{len(total.counts)}: give all clients the same columns"
                )
            total = sums if total is None else total + sums
        assert total is not None
        empty = [k for k, count in enumerate(total.counts) if not count]
        if empty:
            raise DataError(
                f"columns {', '.join(map(str, empty[:5]))} (counted from 0) have no sums "
                "from any client, or too few values: leave them out of the columns"
            )
        variances = [s / n for n, s in zip(total.counts, total.squares, strict=True)]
        deviations = tuple(math.sqrt(variance) or 1.0 for variance in variances)
        return cls(rule, total.means, deviations)

    def applied(self, values: Floats) -> Floats:
        """Return the columns ``[rows, columns]`` without missing values, and scaled."""
        means = np.array(self.means)
        wide = np.where(np.isnan(values), means, values.astype(np.float64))
        if self.rule == "federated":
            wide = (wide - means) / np.array(self.deviations)
        return cast(Floats, wide.astype(np.float32))

    def to_dict(self) -> dict[str, Any]:
        """Return the scaling as JSON has it."""
        lists = {"means": list(self.means), "deviations": list(self.deviations)}
        return {"rule": self.rule, **lists}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "ColumnScaling":
        """Read what :meth:`to_dict` wrote.

        Raises
        ------
        DataError
            If it holds anything else.
        """
        try:
            rule = told["rule"]
            means = tuple(float(mean) for mean in told["means"])
            deviations = tuple(float(deviation) for deviation in told["deviations"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DataError("a scaling of columns has no means and deviations") from None
        finite = all(map(math.isfinite, (*means, *deviations)))
        if rule not in ("none", "federated") or len(means) != len(deviations) or not finite:
            raise DataError("a scaling of columns does not fit together")
        if min(deviations, default=1.0) <= 0:
            raise DataError("a scaling of columns has a deviation of 0 or less")
        return cls(rule, means, deviations)
