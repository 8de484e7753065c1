"""Values of a run's folder, as the report shows them."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsuite.core.errors import one_line

LONGEST = 300
"""Most characters of a text from a run's folder."""

DASH = "–"


def number(value: object) -> float | None:
    """Return a finite number as it is, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def words(value: object) -> str:
    """Return a value as one printable line of bounded length."""
    line = one_line(value, LONGEST + 1)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def label(value: object) -> str:
    """Return a value as text of a Plotly figure, which would otherwise read tags in it."""
    # A dollar sign begins mathematics, and %{...} a number.
    return html.escape(words(value)).replace("$", "&#36;").replace("%{", "%&#8203;{")


def rounded(value: float) -> float:
    """Return a number with six digits, to keep the page small."""
    return float(f"{value:.6g}")


def amount(value: float | None) -> str:
    """Return a number of bytes in words."""
    if value is None:
        return DASH
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} bytes"


def duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it."""
    if seconds is None:
        return DASH
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Parameters
    ----------
    text
        What is shown.
    value
        Number to sort by; None sorts by the text, below all numbers.
    """

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Parameters
    ----------
    caption
        What the table holds.
    head
        Headings of the columns.
    rows
        Rows of cells.
    note
        Explanation below the table.
    score
        Column of the score that it is of; empty for a table that is of none.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    score: str = ""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers, with dashes for those that are unknown."""
        return tuple(
            any(c.value is not None for c in column)
            and all(
                c.value is not None or c.text == DASH or c.text.lstrip("-")[:1].isdigit()
                for c in column
            )
            for column in zip(*self.rows, strict=True)
        ) or (False,) * len(self.head)


def cell(value: object, digits: int | None = None) -> Cell:
    """Return a cell of a number, or of text."""
    finite = number(value)
    if finite is None:
        return Cell(DASH if value is None else words(value))
    if digits is None:
        whole = finite == round(finite) and abs(finite) < 1e15
        return Cell(f"{finite:,.0f}" if whole else f"{finite:.5g}", finite)
    return Cell(f"{finite:,.{digits}f}", finite)


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], note: str = ""
) -> Table:
    """Return a table of plain values; a column's numbers have the same decimals."""
    digits = [_digits(column) for column in zip(*rows, strict=True)]
    return Table(
        caption,
        tuple(map(words, head)),
        tuple(
            tuple(
                value if isinstance(value, Cell) else cell(value, shared)
                for value, shared in zip(row, digits, strict=True)
            )
            for row in rows
        ),
        note,
    )


def _digits(column: Sequence[object]) -> int | None:
    """Return the decimals that show the largest of numbers in five digits, at most six."""
    numbers = [each for value in column if (each := number(value)) is not None]
    if all(each == round(each) for each in numbers):
        return None
    largest = max(map(abs, numbers))
    return min(max(4 - math.floor(math.log10(largest)), 0), 6)


def pairs(
    caption: str, values: Mapping[str, object], head: tuple[str, str] = ("what", "value")
) -> Table:
    """Return a table of two columns, whose values are of unlike kinds."""
    return table(caption, head, [(name, cell(value)) for name, value in values.items()])
