"""Tables as Markdown, as CSV, and for a console.

A table is a list of lines of cells, the heading first. Numbers of columns in ``left`` are
aligned left, the others right.

Cells and notes may come from others: labels, names of keys and clients, reasons. Here, and
in no caller, they become text that a terminal, a spreadsheet or a Markdown page shows and
does not act on.
"""

import csv
import io
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from fedsuite.core.errors import one_line
from fedsuite.core.output import is_terminal, print_text

if TYPE_CHECKING:
    from rich.table import Table

Lines = Sequence[Sequence[str]]

LONGEST = 1_000
"""Letters of a cell or a note."""

_FORMULA = ("=", "+", "-", "@")
"""Beginnings by which a spreadsheet takes a text for a formula."""


def markdown_table(lines: Lines, left: Collection[int] = (0,)) -> str:
    """Return a table as Markdown."""
    rule = ["---" if column in left else "---:" for column in range(len(lines[0]))]
    return "".join(
        "| " + " | ".join(map(_markdown_cell, line)) + " |\n"
        for line in (lines[0], rule, *lines[1:])
    )


def markdown_text(text: str) -> str:
    """Return a text as one line of Markdown without HTML, links and images in it."""
    return one_line(text, LONGEST).replace("<", "&lt;").replace("](", "]\\(")


def _markdown_cell(cell: str) -> str:
    # Backslashes before a bar would take the one that is put there for their own.
    return re.sub(r"(\\*)\|", r"\1\1\\|", markdown_text(cell))


def csv_table(lines: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV, of which no text is a formula to a spreadsheet."""
    text = io.StringIO()
    rows = ([_csv_cell(cell) for cell in line] for line in lines)
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _csv_cell(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = one_line(cell, LONGEST)
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def console_table(
    lines: Lines, notes: Sequence[str] = (), left: Collection[int] = (0,)
) -> "Table":
    """Return a table for a rich console, with notes below it."""
    from rich.table import Table
    from rich.text import Text

    def shown(text: str) -> Text:
        # Text, not str: labels and paths may hold brackets, which a console takes for
        # markup.
        return Text(one_line(text, LONGEST))

    caption = Text("\n").join(map(shown, notes))
    table = Table(caption=caption, caption_justify="left")
    for column, heading in enumerate(lines[0]):
        # A label distinguishes the experiment: it may be broken, never cut off.
        table.add_column(
            shown(heading),
            justify="left" if column in left else "right",
            overflow="fold",
        )
    for cells in lines[1:]:
        table.add_row(*map(shown, cells))
    return table


def print_table(table: "Table") -> None:
    """Print a table; output to a file or pipe has 140 columns."""
    from rich.console import Console

    console = Console(width=None if is_terminal(sys.stdout) else 140)
    with console.capture() as captured:
        console.print(table)
    print_text(captured.get().removesuffix("\n"))
