"""Differences between experiments, pair by pair.

Two runs with the same seed and the same partition are a pair. Their difference leaves out
the effect of seed and data, so differences often spread far less than runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from fedsuite.core.files import atomic_write
from fedsuite.results import compare
from fedsuite.results.compare import COLUMNS, Comparison, Row, first_to_go
from fedsuite.results.tables import (
    FittingTable,
    console_table,
    markdown_table,
    markdown_text,
)

LEVEL = 0.95


@dataclass(frozen=True)
class Paired:
    """Differences of one number over pairs.

    Parameters
    ----------
    mean
        Mean of the differences.
    half_width
        Half of the 95 % t interval; None for one pair.
    num_positive
        Pairs with a difference above 0.
    num_pairs
        Pairs in all.
    corrected
        Half of the corrected resampled t interval of Nadeau and Bengio (2003), for runs
        that each draw their test rows from the same data; None where they do not.
    digits
        Digits behind the point of the numbers that are shown.
    """

    mean: float
    half_width: float | None
    num_positive: int
    num_pairs: int
    corrected: float | None = None
    digits: int = 2

    @property
    def half(self) -> float | None:
        """Half of the interval that decides: the corrected one where there is one."""
        return self.half_width if self.corrected is None else self.corrected

    @property
    def intervals(self) -> str:
        """The mean with its intervals."""
        text = f"{self.mean:+.{self.digits}f}"
        if self.half_width is not None:
            text += f" {self._around(self.half_width)}"
        if self.corrected is not None:
            text += f", corrected {self._around(self.corrected)}"
        return text

    def __str__(self) -> str:
        return f"{self.intervals} ({self.num_positive})"

    def _around(self, half: float) -> str:
        digits = self.digits
        return f"[{self.mean - half:+.{digits}f}, {self.mean + half:+.{digits}f}]"


@dataclass(frozen=True)
class Difference:
    """Differences of one experiment from the baseline.

    Parameters
    ----------
    label
        The experiment.
    num_pairs
        Number of pairs.
    metrics
        Differences by name in :data:`~fedsuite.results.compare.COLUMNS`; None for a metric
        that no pair has on both sides, and where means are over unlike clients.
    """

    label: str
    num_pairs: int
    metrics: dict[str, Paired | None]


def paired_differences(comparison: Comparison) -> tuple[Difference, ...]:
    """Return the paired differences of each experiment from the comparison's baseline."""
    rows = {row.label: row for row in comparison.rows}
    baseline = rows[comparison.baseline]
    return tuple(
        _difference(row, baseline) for row in comparison.rows if row is not baseline
    )


def tables(comparison: Comparison) -> list[FittingTable]:
    """Return tables of rows, differing keys and differences for a rich console."""
    differences = paired_differences(comparison)
    console_tables = compare.tables(comparison)
    if any(difference.num_pairs for difference in differences):
        explained = legend(comparison)
        lines, drop = table_lines(differences, comparison), first_to_go(comparison)
        console_tables.append(console_table(lines, [explained], drop=drop))
    return console_tables


def write(comparison: Comparison, folder: Path) -> None:
    """Write a comparison into a folder, and ``differences.md`` if there are pairs."""
    differences = paired_differences(comparison)
    compare.write_comparison(comparison, folder)
    path = folder / "differences.md"
    path.unlink(missing_ok=True)
    if any(difference.num_pairs for difference in differences):
        text = to_markdown(differences, comparison)
        atomic_write(path, text.encode())


def to_markdown(differences: tuple[Difference, ...], comparison: Comparison) -> str:
    """Return the differences as a Markdown table."""
    table = markdown_table(table_lines(differences, comparison))
    return f"{table}\n{markdown_text(legend(comparison))}\n"


def differences_of(row: Row, baseline: Row, name: str) -> list[float]:
    """Return a metric's differences from the baseline, one per pair that has it.

    None of means over unlike clients.
    """
    if row.incomplete or baseline.incomplete:
        return []
    return [
        row.by_seed[seed][name] - baseline.by_seed[seed][name]
        for seed in _pairs(row, baseline)
        if name in row.by_seed[seed] and name in baseline.by_seed[seed]
    ]


def _pairs(row: Row, baseline: Row) -> list[object]:
    """Return the seeds that both rows have on one partition, which is known."""
    return [
        seed
        for seed, partition in row.partitions.items()
        if partition and baseline.partitions.get(seed) == partition
    ]


def _difference(row: Row, baseline: Row) -> Difference:
    by_column = {name: differences_of(row, baseline, name) for name in COLUMNS}
    return Difference(
        row.label,
        len(_pairs(row, baseline)),
        {
            name: replace(paired(numbers, row.test_share), digits=row.digits)
            if numbers
            else None
            for name, numbers in by_column.items()
        },
    )


def paired(numbers: Sequence[float], test_share: float = 0.0) -> Paired:
    """Return mean, intervals and signs of at least one difference.

    Parameters
    ----------
    numbers
        The differences, one per seed.
    test_share
        Test rows per training row, where each seed draws a split of its own: splits of the
        same rows overlap, and a t interval over them is too narrow. 0 for one split.
    """
    half = corrected = None
    count = len(numbers)
    if count > 1:
        from scipy.stats import t

        scale = float(t.ppf((1 + LEVEL) / 2, count - 1)) * stdev(numbers)
        half = scale / count**0.5
        if test_share:
            corrected = scale * (1 / count + test_share) ** 0.5
    return Paired(fmean(numbers), half, sum(n > 0 for n in numbers), count, corrected)


def legend(comparison: Comparison) -> str:
    """Return the explanation of the differences."""
    falls = "" if comparison.score.higher else "Below 0 is better. "
    return falls + (
        f"Minus {comparison.baseline}, pair by pair of the same seed and partition: mean "
        "of the differences, their 95 % t interval where there are two pairs or more, and "
        "in how many pairs they are above 0. Where each seed drew its own test rows, the "
        "corrected interval (Nadeau and Bengio) allows for the rows that splits share."
    )


def table_lines(
    differences: tuple[Difference, ...], comparison: Comparison
) -> list[list[str]]:
    """Return the heading and the cells of the differences."""
    lines = [["experiment", "pairs", *comparison.columns.values()]]
    for difference in differences:
        cells = (difference.metrics[name] for name in comparison.columns)
        numbers = ["–" if n is None else str(n) for n in cells]
        lines.append([difference.label, str(difference.num_pairs), *numbers])
    return lines
