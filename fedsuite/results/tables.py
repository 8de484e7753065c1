"""Tables as Markdown, as CSV, and for a console.

A table is a list of lines of cells, the heading first. Numbers of columns in ``left`` are
aligned left, the others right.
"""

import csv
import io
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from fedsuite.core.output import is_terminal, print_line

if TYPE_CHECKING:
    from rich.table import Table

Lines = Sequence[Sequence[str]]


def markdown_table(lines: Lines, left: Collection[int] = (0,)) -> str:
    """Return a table as Markdown."""
    rule = ["---" if column in left else "---:" for column in range(len(lines[0]))]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n"
        for line in (lines[0], rule, *lines[1:])
    )


def csv_table(lines: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def console_table(
    lines: Lines, notes: Sequence[str] = (), left: Collection[int] = (0,)
) -> "Table":
    """Return a table for a rich console, with notes below it."""
    from rich.table import Table
    from rich.text import Text

    # Text, not str: labels and paths may hold brackets, which a console takes for markup.
    table = Table(caption=Text("\n".join(notes)), caption_justify="left")
    for column, heading in enumerate(lines[0]):
        # A label distinguishes the experiment: it may be broken, never cut off.
        table.add_column(
            heading, justify="left" if column in left else "right", overflow="fold"
        )
    for cells in lines[1:]:
        table.add_row(*map(Text, cells))
    return table


def print_table(table: "Table") -> None:
    """Print a table; output to a file or pipe has 140 columns."""
    from rich.console import Console

    console = Console(width=None if is_terminal(sys.stdout) else 140)
    with console.capture() as captured:
        console.print(table)
    print_line(captured.get().removesuffix("\n"))
