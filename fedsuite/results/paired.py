"""Differences between experiments, pair by pair.

Two runs are a pair if they have the same seed and the same partition. A pair with the same
network also shares the initial model. The difference of a pair leaves out the effect of
seed and data, so the spread of differences is often far smaller than the spread of the
runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from fedsuite.core.errors import RunError
from fedsuite.core.files import atomic_write
from fedsuite.results.compare import (
    COLUMNS,
    Comparison,
    Row,
    keys_table,
    markdown_table,
    write_comparison,
)
from fedsuite.results.compare import table as comparison_table

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
    """

    mean: float
    half_width: float | None
    num_positive: int

    def __str__(self) -> str:
        interval = ""
        if self.half_width is not None:
            low, high = self.mean - self.half_width, self.mean + self.half_width
            interval = f" [{low:+.2f}, {high:+.2f}]"
        return f"{self.mean:+.2f}{interval} ({self.num_positive})"


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


def paired_differences(
    comparison: Comparison, baseline: str | None = None
) -> tuple[Difference, ...]:
    """Return the paired differences of each experiment from the baseline.

    Parameters
    ----------
    comparison
        Comparison by :func:`~fedsuite.results.compare.compare`.
    baseline
        Label of the experiment to subtract; None is the first.

    Raises
    ------
    RunError
        If no experiment has that label.
    """
    rows = {row.label: row for row in comparison.rows}
    label = _baseline(comparison, baseline)
    if label not in rows:
        raise RunError(f"no experiment {label!r}: there are {'; '.join(rows)}")
    return tuple(
        _difference(row, rows[label]) for row in comparison.rows if row.label != label
    )


def tables(comparison: Comparison, baseline: str | None = None) -> list["Table"]:
    """Return tables of rows, differing keys and differences for a rich console."""
    differences = paired_differences(comparison, baseline)
    found = [comparison_table(comparison)]
    if comparison.keys:
        found.append(keys_table(comparison))
    if any(difference.num_pairs for difference in differences):
        found.append(_table(differences, _baseline(comparison, baseline)))
    return found


def write(comparison: Comparison, folder: Path, baseline: str | None = None) -> None:
    """Write a comparison and, where there are pairs, ``differences.md``.

    Parameters
    ----------
    comparison, folder
        As for :func:`~fedsuite.results.compare.write_comparison`.
    baseline
        As for :func:`paired_differences`.
    """
    differences = paired_differences(comparison, baseline)
    write_comparison(comparison, folder)
    path = folder / "differences.md"
    path.unlink(missing_ok=True)
    if any(difference.num_pairs for difference in differences):
        text = to_markdown(differences, _baseline(comparison, baseline))
        atomic_write(path, text.encode())


def to_markdown(differences: tuple[Difference, ...], baseline: str) -> str:
    """Return the differences as a Markdown table."""
    header = _header()
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    lines += [_cells(difference) for difference in differences]
    return markdown_table(lines) + f"\n{_legend(baseline)}\n"


def _baseline(comparison: Comparison, baseline: str | None) -> str:
    return comparison.rows[0].label if baseline is None else baseline


def _table(differences: tuple[Difference, ...], baseline: str) -> "Table":
    from rich.table import Table
    from rich.text import Text

    result = Table(caption=Text(_legend(baseline)), caption_justify="left")
    for index, name in enumerate(_header()):
        result.add_column(name, justify="right" if index else "left", overflow="fold")
    for difference in differences:
        result.add_row(*(Text(cell) for cell in _cells(difference)))
    return result


def _difference(row: Row, baseline: Row) -> Difference:
    seeds = [
        seed
        for seed, partition in row.partitions.items()
        if partition and baseline.partitions.get(seed) == partition
    ]
    found = {
        name: [
            row.by_seed[seed][name] - baseline.by_seed[seed][name]
            for seed in seeds
            if name in row.by_seed[seed] and name in baseline.by_seed[seed]
        ]
        for name in COLUMNS
    }
    return Difference(
        row.label, len(seeds), {name: paired(n) if n else None for name, n in found.items()}
    )


def paired(numbers: Sequence[float]) -> Paired:
    """Return mean, interval and signs of at least one difference."""
    half = None
    if len(numbers) > 1:
        from scipy.stats import t

        quantile = float(t.ppf((1 + LEVEL) / 2, len(numbers) - 1))
        half = quantile * stdev(numbers) / len(numbers) ** 0.5
    return Paired(fmean(numbers), half, sum(number > 0 for number in numbers))


def _legend(baseline: str) -> str:
    return (
        f"Minus {baseline}, pair by pair of the same seed and partition: mean of the "
        "differences, their 95 % t interval where there are two pairs or more, and in how "
        "many pairs they are above 0."
    )


def _header() -> list[str]:
    return ["experiment", "pairs", *COLUMNS.values()]


def _cells(difference: Difference) -> list[str]:
    numbers = ["–" if n is None else str(n) for n in difference.metrics.values()]
    return [difference.label, str(difference.num_pairs), *numbers]
