"""Differences between experiments, pair by pair.

Two runs with the same seed and the same partition are a pair. Their difference leaves out
the effect of seed and data, so differences often spread far less than runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from fedsuite.core.files import atomic_write
from fedsuite.core.tasks import score_of_column
from fedsuite.results import compare
from fedsuite.results.compare import COLUMNS, Comparison, Row
from fedsuite.results.tables import console_table, markdown_table, markdown_text

if TYPE_CHECKING:
    from rich.table import Table

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
    corrected
        Half of the corrected resampled t interval of Nadeau and Bengio (2003), for runs
        that each draw their test rows from the same data; None where they do not.
    """

    mean: float
    half_width: float | None
    num_positive: int
    corrected: float | None = None

    @property
    def intervals(self) -> str:
        """The mean with its intervals."""
        text = f"{self.mean:+.2f}"
        if self.half_width is not None:
            text += f" {self._around(self.half_width)}"
        if self.corrected is not None:
            text += f", corrected {self._around(self.corrected)}"
        return text

    def __str__(self) -> str:
        return f"{self.intervals} ({self.num_positive})"

    def _around(self, half: float) -> str:
        return f"[{self.mean - half:+.2f}, {self.mean + half:+.2f}]"


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
        that no pair has on both sides.
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


def tables(comparison: Comparison) -> list["Table"]:
    """Return tables of rows, differing keys and differences for a rich console."""
    differences = paired_differences(comparison)
    console_tables = compare.tables(comparison)
    if any(difference.num_pairs for difference in differences):
        explained = legend(comparison.baseline, comparison.score)
        console_tables.append(
            console_table(table_lines(differences, comparison.score), [explained])
        )
    return console_tables


def write(comparison: Comparison, folder: Path) -> None:
    """Write a comparison into a folder, and ``differences.md`` if there are pairs."""
    differences = paired_differences(comparison)
    compare.write_comparison(comparison, folder)
    path = folder / "differences.md"
    path.unlink(missing_ok=True)
    if any(difference.num_pairs for difference in differences):
        text = to_markdown(differences, comparison.baseline, comparison.score)
        atomic_write(path, text.encode())


def to_markdown(
    differences: tuple[Difference, ...], baseline: str, score: str = compare.ACCURACY
) -> str:
    """Return the differences as a Markdown table."""
    lines = markdown_table(table_lines(differences, score))
    return f"{lines}\n{markdown_text(legend(baseline, score))}\n"


def _difference(row: Row, baseline: Row) -> Difference:
    seeds = [
        seed
        for seed, partition in row.partitions.items()
        if partition and baseline.partitions.get(seed) == partition
    ]
    by_column = {
        name: [
            row.by_seed[seed][name] - baseline.by_seed[seed][name]
            for seed in seeds
            if name in row.by_seed[seed] and name in baseline.by_seed[seed]
        ]
        for name in COLUMNS
    }
    return Difference(
        row.label,
        len(seeds),
        {
            name: paired(numbers, row.test_share) if numbers else None
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
    return Paired(fmean(numbers), half, sum(n > 0 for n in numbers), corrected)


def legend(baseline: str, score: str = compare.ACCURACY) -> str:
    """Return the explanation of the differences of a score's column."""
    declared = score_of_column(score)
    falls = declared is not None and not declared.higher
    return ("Below 0 is better. " if falls else "") + (
        f"Minus {baseline}, pair by pair of the same seed and partition: mean of the "
        "differences, their 95 % t interval where there are two pairs or more, and in how "
        "many pairs they are above 0. Where each seed drew its own test rows, the "
        "corrected interval (Nadeau and Bengio) allows for the rows that splits share."
    )


def table_lines(
    differences: tuple[Difference, ...], score: str = compare.ACCURACY
) -> list[list[str]]:
    """Return the heading and the cells of the differences of a score's column."""
    lines = [["experiment", "pairs", *compare.headings(score).values()]]
    for difference in differences:
        numbers = ["–" if n is None else str(n) for n in difference.metrics.values()]
        lines.append([difference.label, str(difference.num_pairs), *numbers])
    return lines
