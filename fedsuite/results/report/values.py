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


def per_cent(fraction: float | None) -> float | None:
    """Return a fraction in per cent."""
    return None if fraction is None else 100 * fraction


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Parameters
    ----------
    text
        What is shown.
    value
        Number to sort by; None sorts by the text.
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
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def cell(value: object, digits: int | None = None) -> Cell:
    """Return a cell of a number, or of text."""
    finite = number(value)
    if finite is None:
        return Cell(DASH if value is None else words(value))
    if digits is None:
        whole = finite == round(finite) and abs(finite) < 1e15
        return Cell(f"{finite:,.0f}" if whole else f"{finite:.5g}", finite)
    return Cell(f"{finite:.{digits}f}", finite)


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], note: str = ""
) -> Table:
    """Return a table of plain values."""
    return Table(
        caption,
        tuple(map(words, head)),
        tuple(tuple(v if isinstance(v, Cell) else cell(v) for v in row) for row in rows),
        note,
    )


def pairs(
    caption: str, values: Mapping[str, object], head: tuple[str, str] = ("what", "value")
) -> Table:
    """Return a table of two columns."""
    return table(caption, head, [(name, value) for name, value in values.items()])
