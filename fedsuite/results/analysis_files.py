"""Output of an analysis: a table as CSV and Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedsuite.core.errors import RunError
from fedsuite.core.files import atomic_write, write_error
from fedsuite.core.output import print_line
from fedsuite.results.tables import (
    console_table,
    csv_table,
    markdown_table,
    markdown_text,
    print_table,
)

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Numbers with headings.

    Parameters
    ----------
    columns
        Headings.
    rows
        One cell per heading; None for no number.
    note
        Explanation of the numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def to_csv(self) -> str:
        """Return the table as CSV, numbers in full."""
        return csv_table([self.columns, *self.rows])

    def to_markdown(self) -> str:
        """Return the table as Markdown, numbers rounded, the note below."""
        text = markdown_table([self.columns, *map(_cells, self.rows)], self._texts())
        return f"{text}\n{markdown_text(self.note)}\n" if self.note else text

    def show(self) -> None:
        """Print the table."""
        lines = [self.columns, *map(_cells, self.rows)]
        print_table(console_table(lines, [self.note], self._texts()))

    def _texts(self) -> list[int]:
        """Return the columns that hold text."""
        return [
            index
            for index in range(len(self.columns))
            if any(isinstance(row[index], str) for row in self.rows)
        ]


@dataclass(frozen=True)
class Output:
    """The files of one analysis: their folder, their name, and the endings of the name."""

    folder: Path
    name: str
    endings: tuple[str, ...] = (".csv", ".md")

    @classmethod
    def claim(cls, folder: Path, name: str, *endings: str, overwrite: bool) -> Self:
        """Make the folder before the work starts, and return the output.

        Parameters
        ----------
        folder, name
            Folder of the files, and their name without ending.
        *endings
            Endings of the files; none are those of :meth:`write`.
        overwrite
            Whether files of an earlier call may be replaced.

        Raises
        ------
        RunError
            If a file exists and ``overwrite`` is false, or the folder cannot be made.
        """
        output = cls(folder, name, endings or cls.endings)
        for path in output.paths:
            if path.exists() and not overwrite:
                raise RunError(
                    f"{path} is there already: choose another --output, or replace it with "
                    "--overwrite"
                )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error) from error
        return output

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, one for each ending: CSV and Markdown unless said otherwise."""
        stem = self.folder / self.name
        return tuple(map(stem.with_suffix, self.endings))

    def write(self, table: Table, *, printed: Table | None = None) -> None:
        """Write the files and print the table, or a shorter table in its place."""
        csv_path, markdown = self.paths[:2]
        atomic_write(csv_path, table.to_csv().encode())
        atomic_write(markdown, table.to_markdown().encode())
        (printed or table).show()
        print_line(f"table: {csv_path}, {markdown}")


def _cells(row: Sequence[Cell]) -> list[str]:
    return [_text(cell) for cell in row]


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
