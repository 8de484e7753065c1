"""Tables as Markdown, as CSV, and for a console.

A table is a list of lines of cells, the heading first. Numbers of columns in ``left`` are
aligned left, the others right.

Cells and notes may come from others: labels, names of keys and clients, reasons. Here, and
in no caller, they become text that a terminal, a spreadsheet or a Markdown page shows and
does not act on.
"""

import csv
import io
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsuite.core.errors import one_line
from fedsuite.core.output import is_terminal, print_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
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


LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"\N{PLUS-MINUS SIGN}": r"$\pm$", "–": "--"},
}
"""Characters that LaTeX acts on, or may lack, as it writes them."""


def latex_text(text: str) -> str:
    """Return a text as one line of LaTeX without commands in it."""
    return "".join(LATEX.get(letter, letter) for letter in one_line(text, LONGEST))


def latex_table(lines: Lines, left: Collection[int] = (0,)) -> str:
    """Return a table as LaTeX, with the rules of the package booktabs."""
    columns = "".join("l" if column in left else "r" for column in range(len(lines[0])))
    head, *rows = (" & ".join(map(latex_text, line)) + r" \\" for line in lines)
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}", ""])


def console_table(
    lines: Lines,
    notes: Sequence[str] = (),
    left: Collection[int] = (0,),
    drop: Sequence[str] = (),
) -> "FittingTable":
    """Return a table for a rich console, with notes below it.

    Parameters
    ----------
    lines, left
        The table.
    notes
        Lines below it.
    drop
        Headings of columns that a narrow console leaves out, the first one first.
    """
    return FittingTable(lines, tuple(notes), left, drop)


@dataclass(frozen=True)
class FittingTable:
    """A table that breaks neither words nor numbers, where the console is wide enough.

    A narrow console gets fewer columns, and a note names those that it lacks.
    """

    lines: Lines
    notes: tuple[str, ...]
    left: Collection[int]
    drop: Sequence[str]

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> Iterator["Table"]:
        """Yield the table that fits."""
        gone = 0
        while (wide := self._least_width(gone) > options.max_width) and self.drop[gone:]:
            gone += 1
        yield self._table(gone, keep_numbers=not wide)

    def _kept(self, gone: int) -> list[int]:
        dropped = self.drop[:gone]
        return [i for i, heading in enumerate(self.lines[0]) if heading not in dropped]

    def _least(self, column: int) -> int:
        """Return the width below which a word of a text, or a number, would be broken."""
        heading, *cells = (one_line(line[column], LONGEST) for line in self.lines)
        words = [word for cell in cells for word in cell.split()]
        whole = words if column in self.left else cells
        return max(map(len, [*heading.split(), *whole]), default=0)

    def _least_width(self, gone: int) -> int:
        # The frame has a line after each column, and a space to both sides of it.
        return 1 + sum(self._least(column) + 3 for column in self._kept(gone))

    def _table(self, gone: int, *, keep_numbers: bool) -> "Table":
        from rich.table import Table
        from rich.text import Text

        def shown(text: str) -> Text:
            # Text, not str: labels and paths may hold brackets, which a console takes for
            # markup.
            return Text(one_line(text, LONGEST))

        dropped = ", ".join(self.drop[:gone])
        notes = [*self.notes, *([f"Left out, for lack of width: {dropped}."] * bool(gone))]
        caption = Text("\n").join(map(shown, notes))
        table = Table(caption=caption, caption_justify="left")
        kept = self._kept(gone)
        for column in kept:
            heading = [self.lines[0][column]]
            numbers = column not in self.left
            if numbers and keep_numbers:
                heading = textwrap.wrap(heading[0], max(self._least(column), 1))
            # A label distinguishes the experiment: it may be broken, never cut off.
            table.add_column(
                Text("\n").join(map(shown, heading)),
                justify="right" if numbers else "left",
                overflow="fold",
                no_wrap=numbers and keep_numbers,
            )
        for line in self.lines[1:]:
            table.add_row(*(shown(line[column]) for column in kept))
        return table


def keep_words(table: "Table", width: int) -> None:
    """Give a table's columns such widths that as few words as can be are broken."""
    from rich.text import Text

    longest, whole = [], []
    for column in table.columns:
        column.overflow = "fold"
        cells = [Text.from_markup(str(cell)).plain for cell in column.cells]
        longest.append(max((len(w) for cell in cells for w in cell.split()), default=0))
        whole.append(max(map(len, cells), default=0))
    free = width - 1 - 3 * len(longest)
    if sum(whole) <= free:
        return

    def least_widths(bound: int) -> list[int]:
        floors = (column.min_width or 0 for column in table.columns)
        return [max(min(n, bound), f) for n, f in zip(longest, floors, strict=True)]

    # Where not all words fit, the very long ones are broken.
    bound = max(longest, default=0)
    while bound > 1 and sum(least_widths(bound)) > free:
        bound -= 1
    least = least_widths(bound)
    wanted = [most - needed for most, needed in zip(whole, least, strict=True)]
    spare = max(free - sum(least), 0)
    for column, needed, more in zip(table.columns, least, wanted, strict=True):
        column.width = max(needed + spare * more // max(sum(wanted), 1), 1)


def print_table(table: "RenderableType") -> None:
    """Print a table; output to a file or pipe has 140 columns, or ``COLUMNS``."""
    from rich.console import Console
    from rich.table import Table

    told = is_terminal(sys.stdout) or "COLUMNS" in os.environ
    console = Console(width=None if told else 140)
    if isinstance(table, Table):
        keep_words(table, console.width)
    with console.capture() as captured:
        console.print(table)
    print_text(captured.get().removesuffix("\n"))
