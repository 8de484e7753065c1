"""Differences between two experiments, seed by seed.

Runs of one seed share the partition and the initial model. Their difference does not hold
what the seed itself brings, so that its spread is often far smaller than theirs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsuite.errors import RunError
from fedsuite.results.compare import (
    COLUMNS,
    Comparison,
    Row,
    Spread,
    markdown_table,
    spread,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Difference:
    """One experiment minus the baseline.

    Parameters
    ----------
    label
        The experiment.
    num_seeds
        Seeds that both have.
    metrics
        Spread of the differences by name in
        :data:`~fedsuite.results.compare.COLUMNS`; None where a side has no such number.
    num_positive
        Of those seeds, how many have a difference above 0, by name.
    """

    label: str
    num_seeds: int
    metrics: dict[str, Spread | None]
    num_positive: dict[str, int]


def paired_differences(comparison: Comparison, baseline: str) -> tuple[Difference, ...]:
    """Return each experiment of a comparison minus its baseline, over common seeds.

    Parameters
    ----------
    comparison
        What :func:`~fedsuite.results.compare.compare` returned.
    baseline
        Label of the experiment that is taken away.

    Raises
    ------
    RunError
        If no experiment has that label.
    """
    rows = {row.label: row for row in comparison.rows}
    if baseline not in rows:
        raise RunError(f"no experiment {baseline!r}: there are {'; '.join(rows)}")
    return tuple(
        _difference(row, rows[baseline]) for row in comparison.rows if row.label != baseline
    )


def table(differences: tuple[Difference, ...], baseline: str) -> "Table":
    """Return the differences as a table for a rich console."""
    from rich.table import Table
    from rich.text import Text

    result = Table(caption=Text(_legend(baseline)), caption_justify="left")
    for index, name in enumerate(_header()):
        result.add_column(name, justify="right" if index else "left", overflow="fold")
    for difference in differences:
        result.add_row(*(Text(cell) for cell in _cells(difference)))
    return result


def to_markdown(differences: tuple[Difference, ...], baseline: str) -> str:
    """Return the differences as a Markdown table."""
    header = _header()
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    lines += [_cells(difference) for difference in differences]
    return markdown_table(lines) + f"\n{_legend(baseline)}\n"


def _difference(row: Row, baseline: Row) -> Difference:
    seeds = [seed for seed in row.by_seed if seed in baseline.by_seed]
    values = {
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
        {name: spread(numbers) for name, numbers in values.items()},
        {name: sum(number > 0 for number in numbers) for name, numbers in values.items()},
    )


def _legend(baseline: str) -> str:
    return (
        f"Minus {baseline}, seed by seed: mean and sample standard deviation of the "
        "differences, and in how many seeds they are above 0."
    )


def _header() -> list[str]:
    return ["experiment", "seeds", *COLUMNS.values()]


def _cells(difference: Difference) -> list[str]:
    numbers = [
        "–"
        if found is None
        else f"{found.mean:+.2f}{str(found).removeprefix(f'{found.mean:.2f}')}"
        f" ({difference.num_positive[name]})"
        for name, found in difference.metrics.items()
    ]
    return [difference.label, str(difference.num_seeds), *numbers]
