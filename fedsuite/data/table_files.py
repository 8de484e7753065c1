"""Files of tables, Parquet or CSV, as Arrow tables.

A CSV's delimiter (comma, semicolon or tab) is the one that its first line has most of. With
semicolons a comma in a number is a decimal point. Empty fields and the usual words for
none, such as ``NA``, are missing values; in a column of text that has such a word among its
declared values, the word is that value.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from fedsuite.core.errors import DataError, one_line
from fedsuite.core.reading import check_regular

SUFFIXES = (".parquet", ".csv", ".tsv")
"""Kinds of files that are read, by the ends of their names."""

_HEAD = 1 << 16  # bytes that delimiter and decimal point are looked for in
_MOST_UNPACKED, _FREE_BYTES = 256, 1 << 28
"""Bytes that a byte of Parquet may become, and those that any file may."""
_BATCH_BYTES, _BATCH_ROWS = 1 << 26, 1 << 16
_NO_VALUE = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A")

ArrowTable: TypeAlias = Any  # pyarrow ships no types


def table_files(folder: Path, pattern: str = "*") -> list[Path]:
    """Return a folder's files of tables whose stem fits a pattern, by name."""
    return sorted(
        path
        for path in folder.glob(pattern)
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def column_names(file: Path) -> list[str]:
    """Return the names of a file's columns, as often as they are there."""
    return list(arrow_schema(file).names)


def arrow_schema(file: Path) -> Any:
    """Return the names and types of a file's columns.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    import pyarrow as pa

    if is_csv(file):
        return read_table(file).schema
    try:
        return opened_parquet(file).schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error) from error


def read_table(
    file: Path,
    names: Sequence[str] = (),
    texts: Collection[str] = (),
    values: Mapping[str, Sequence[str]] | None = None,
) -> ArrowTable:
    """Return the columns of a file.

    Parameters
    ----------
    file
        Parquet or CSV.
    names
        Columns to read; by default all.
    texts
        Columns that are text whatever they look like, so that ``01`` stays ``01``.
    values
        Column to the values that are declared of it, such as a category's.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    import pyarrow as pa

    if is_csv(file):
        table = _read_csv(file, names, texts)
        return _with_declared(table, file, values or {})
    try:
        return pa.Table.from_batches(*_batches(file, names))
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error) from error


def opened_parquet(file: Path) -> Any:
    """Return a Parquet file whose columns' names are text.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If it is none, or no regular file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_regular(file)
    # Not read_table, which would take folder names such as a=1 for columns.
    try:
        parquet = pq.ParquetFile(file)
        parquet.schema_arrow.names  # noqa: B018
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(str(error)) from error
    return parquet


def _batches(file: Path, names: Sequence[str]) -> tuple[list[Any], Any]:
    """Return a file's rows and their schema; refuse what unpacks to far more than it is."""
    import pyarrow as pa

    parquet = opened_parquet(file)
    most = file.stat().st_size * _MOST_UNPACKED + _FREE_BYTES
    batches, size = [], 0
    rows = rows_at_once(file, parquet, names, _BATCH_ROWS)
    for batch in parquet.iter_batches(rows, columns=[*names] or None):
        # Texts that are no UTF-8 among others.
        batch.validate(full=True)
        batches.append(batch)
        size += batch.nbytes
        if size > most:
            raise pa.ArrowInvalid(f"it unpacks to more than {most:,} bytes")
    schema = batches[0].schema if batches else parquet.read([*names] or None).schema
    return batches, schema


def rows_at_once(file: Path, parquet: Any, names: Collection[str], most: int) -> int:
    """Return how many rows of some columns, all by default, to unpack at once.

    A dictionary has a long value once, and every row may point at it. What a damaged file
    says of its chunks is not asked for: the library ends the process over some of it.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If the first row of a group cannot be read.
    """
    import pyarrow.parquet as pq

    columns = [parquet.schema.column(place) for place in range(len(parquet.schema))]
    of_names = tuple(f"{name}." for name in names) if names else ("",)
    wanted = [column for column in columns if f"{column.path}.".startswith(of_names)]
    texts = [column.path for column in wanted if column.physical_type == "BYTE_ARRAY"]
    longest = max([1, *(column.length or 0 for column in wanted)])
    # One row brings the whole dictionary, and no value twice.
    coded = pq.ParquetFile(file, read_dictionary=texts)
    for number in range(parquet.num_row_groups if texts else 0):
        of_row = sum(
            _longest_text(column)
            for batch in islice(coded.iter_batches(1, [number], columns=texts), 1)
            for column in batch.columns
        )
        longest = max(longest, of_row)
    return min(max(_BATCH_BYTES // longest, 1), most)


def _longest_text(column: Any) -> int:
    """Return the bytes of the longest text in an array's dictionaries, or in itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.StructArray):
        return sum(map(_longest_text, column.flatten()))
    if hasattr(column, "values"):
        # Of a list without entries nobody knows: a row at a time.
        return _longest_text(column.values) if len(column.values) else _BATCH_BYTES
    try:
        texts = getattr(column, "dictionary", column)
        return pc.max(pc.binary_length(texts)).as_py() or 0
    except pa.ArrowNotImplementedError:
        return _BATCH_BYTES


def is_csv(file: Path) -> bool:
    """Return whether a file is text with delimiters, by its name."""
    return file.suffix.lower() in (".csv", ".tsv")


def _with_declared(
    table: ArrowTable, file: Path, values: Mapping[str, Sequence[str]]
) -> ArrowTable:
    """Return a table in which declared values are no missing ones, such as ``NA``."""
    import pyarrow.compute as pc

    once = [name for name in values if table.column_names.count(name) == 1]
    words = {name: [v for v in values[name] if v in _NO_VALUE] for name in once}
    for name, declared in words.items():
        if not declared:
            continue
        others = [word for word in _NO_VALUE if word not in declared]
        column = _read_csv(file, [name], [name], others).column(name)
        place = table.column_names.index(name)
        table = table.set_column(place, name, pc.cast(column, "string"))
    return table


def _read_csv(
    file: Path,
    names: Sequence[str],
    texts: Collection[str],
    no_value: Sequence[str] = _NO_VALUE,
) -> ArrowTable:
    import pyarrow as pa
    from pyarrow import csv

    try:
        check_regular(file)
        with file.open("rb") as stream:
            head, _, rest = stream.read(_HEAD).partition(b"\n")
        if not head.strip():
            raise DataError(f"{file}: no line with the columns' names: write one")
        delimiter = max(",;\t", key=head.decode().count)
        decimal_comma = delimiter == ";" and b"," in rest
        options = csv.ConvertOptions(
            include_columns=[*names],
            column_types={name: pa.string() for name in texts},
            null_values=list(no_value),
            strings_can_be_null=True,
            decimal_point="," if decimal_comma else ".",
        )
        parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        table = csv.read_csv(file, parse_options=parsing, convert_options=options)
        # Names of another encoding raise here.
        table.column_names  # noqa: B018
        return table
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: Exception) -> DataError:
    """Return the error of a file that cannot be read."""
    kind = "CSV in UTF-8" if is_csv(file) else "Parquet"
    return DataError(
        f"{file}: not a readable {kind} file ({one_line(error)}): write it again"
    )
