"""Columns of Arrow tables as arrays; each function refuses in a part of a line.

What is refused names the column and the row, so that it belongs into the log of who has
the table, and nowhere else.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError, one_line

ArrowTable: TypeAlias = Any  # pyarrow ships no types
Floats = npt.NDArray[np.float32]

_NAMED = 5
"""Names or values that a message lists."""


def as_arrow(table: Any, where: str = "") -> ArrowTable:
    """Return a pyarrow Table of a DataFrame, a mapping of arrays, or of itself.

    Raises
    ------
    DataError
        If it is none of these, or its columns mix types.
    """
    import pyarrow as pa

    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    place = f"{where}: " if where else ""
    try:
        if hasattr(table, "to_arrow"):
            return table.to_arrow()
        if isinstance(table, Mapping):
            return pa.table({str(name): _plain(column) for name, column in table.items()})
        if hasattr(table, "columns") and hasattr(table, "dtypes"):
            return pa.Table.from_pandas(
                table.rename(columns=str), preserve_index=False
            ).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{place}a column cannot be read ({one_line(error)})") from None
    raise DataError(
        f"{place}a {type(table).__name__} has no named columns: give a DataFrame, a "
        "pyarrow Table or a dictionary of arrays"
    )


def _plain(column: Any) -> Any:
    """Return rows of an array of two axes as lists, which Arrow takes."""
    return list(column) if getattr(column, "ndim", 1) == 2 else column


def is_list(kind: Any) -> bool:
    """Return whether a column of this type holds lists, of whatever length."""
    import pyarrow as pa

    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_number(kind: Any) -> bool:
    """Return whether a column of this type holds numbers."""
    import pyarrow as pa

    tests = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_decimal,
    )
    return any(test(kind) for test in tests)


def one_column(table: ArrowTable, name: str) -> Any:
    """Return the one column of a name, as a single array.

    Raises
    ------
    DataError
        If there is none, or several.
    """
    places = table.schema.get_all_field_indices(name)
    if not places:
        present = ", ".join(table.column_names[:20])
        raise DataError(f"no column {name!r}; it has {present}")
    if len(places) > 1:
        raise DataError(f"column {name!r} is there {len(places)} times: rename all but one")
    column = table.column(places[0]).combine_chunks()
    # Categories of pandas and text that was read as a dictionary.
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def number_rows(table: ArrowTable, name: str, length: int, *, refuses: bool) -> Floats:
    """Return numbers ``[rows, entries]``; a missing one is NaN, or refused.

    Parameters
    ----------
    table, name
        Table and column.
    length
        Entries of its lists; 0 for a column without lists.
    refuses
        Whether a missing value is an error.
    """
    import pyarrow as pa

    column, width = _flat(table, name, length)
    if not is_number(column.type) and not pa.types.is_null(column.type):
        raise DataError(_no_numbers(name, column))
    wide = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        values: Floats = wide.astype(np.float32)
    missing, infinite = np.isnan(values), np.isinf(values)
    if infinite.any():
        row = int(np.flatnonzero(infinite)[0]) // width
        raise DataError(f"column {name!r}, row {row}: not a finite number: mend it")
    if missing.any() and refuses:
        row = int(np.flatnonzero(missing)[0]) // width
        raise DataError(
            f"column {name!r} has {int(missing.sum())} missing values, the first in row "
            f"{row}: fill them, drop their rows, or set missing to mean or indicator in "
            "the schema"
        )
    return values.reshape(-1, width)


def token_rows(
    table: ArrowTable, name: str, length: int, tokens: int
) -> npt.NDArray[np.int64]:
    """Return the numbers of words ``[rows, entries]``, 0 to ``tokens`` - 1."""
    import pyarrow as pa

    column, width = _flat(table, name, length)
    if not pa.types.is_integer(column.type):
        raise DataError(f"column {name!r} holds {column.type}: tokens are whole numbers")
    if column.null_count:
        raise DataError(f"column {name!r} has {column.null_count} missing tokens")
    numbers: npt.NDArray[np.int64]
    numbers = column.to_numpy(zero_copy_only=False).astype(np.int64)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= tokens))
    if wrong.size:
        row = int(wrong[0]) // width
        raise DataError(
            f"column {name!r}, row {row}: token {numbers[wrong[0]]} is outside 0 to "
            f"{tokens - 1}"
        )
    return numbers.reshape(-1, width)


def category_positions(
    table: ArrowTable, name: str, values: Sequence[str], *, refuses: bool
) -> Floats:
    """Return one-hot rows ``[rows, values]``; a missing value is a row of 0, or refused."""
    texts = _texts(table, name)
    position_of = {value: position for position, value in enumerate(values)}
    missing = [row for row, text in enumerate(texts) if text is None]
    if missing and refuses:
        raise DataError(
            f"column {name!r} has {len(missing)} missing values, the first in row "
            f"{missing[0]}: fill them, drop their rows, or set missing to mean or "
            "indicator in the schema"
        )
    unknown = sorted({text for text in texts if text is not None} - set(position_of))
    if unknown:
        raise DataError(
            f"column {name!r} has {_some(unknown)}, and its categories are "
            f"{_some(values)}: add to the schema, or mend the table"
        )
    rows = np.zeros((len(texts), len(values)), np.float32)
    for row, text in enumerate(texts):
        if text is not None:
            rows[row, position_of[text]] = 1.0
    return rows


def class_numbers(
    table: ArrowTable, name: str, classes: Sequence[str], num_classes: int
) -> npt.NDArray[np.int64]:
    """Return classes as numbers from 0, by their names or as the table has them."""
    import pyarrow as pa

    column = one_column(table, name)
    if column.null_count:
        raise DataError(f"column {name!r} has {column.null_count} missing values")
    if classes:
        texts = _texts(table, name)
        number_of = {text: number for number, text in enumerate(classes)}
        if unknown := sorted({str(text) for text in texts} - set(classes)):
            raise DataError(
                f"column {name!r} has {_some(unknown)}, and the classes are "
                f"{_some(classes)}: add to the schema, or mend the table"
            )
        return np.array([number_of[str(text)] for text in texts], np.int64)
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(
            f"column {name!r} holds {column.type}, not whole numbers: name its classes in "
            "a schema"
        )
    numbers: npt.NDArray[np.int64]
    numbers = column.to_numpy(zero_copy_only=False).astype(np.int64)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= num_classes))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"column {name!r}, row {row}: label {numbers[row]} is outside 0 to "
            f"{num_classes - 1}"
        )
    return numbers


def texts_of(table: ArrowTable, name: str) -> list[str]:
    """Return what rows are about, such as patients, as texts; none may be missing."""
    texts = _texts(table, name)
    if missing := sum(text is None for text in texts):
        raise DataError(f"column {name!r} has {missing} missing values")
    return cast(list[str], texts)


def _texts(table: ArrowTable, name: str) -> list[str | None]:
    """Return a column's values as texts, a whole number without a point."""
    import pyarrow as pa

    column = one_column(table, name)
    if is_list(column.type) or pa.types.is_struct(column.type):
        raise DataError(f"column {name!r} holds {column.type}: expected text")
    if pa.types.is_floating(column.type):
        # A missing value makes floats of whole numbers in pandas and in many files.
        numbers = column.to_numpy(zero_copy_only=False)
        return [
            None if np.isnan(n) else str(int(n)) if float(n).is_integer() else str(n)
            for n in numbers.tolist()
        ]
    try:
        texts = column.cast(pa.string()).to_pylist()
    except pa.ArrowException as error:
        raise DataError(f"column {name!r} is no text ({one_line(error)})") from None
    return cast(list[str | None], texts)


def _flat(table: ArrowTable, name: str, length: int) -> tuple[Any, int]:
    """Return the values of a column, and how many there are per row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = one_column(table, name)
    if not is_list(column.type):
        if length:
            raise DataError(f"column {name!r} holds {column.type}, not lists of {length}")
        return column, 1
    if not length:
        raise DataError(
            f"column {name!r} holds lists: write {name}[N] in the schema, N numbers each"
        )
    lengths = pc.list_value_length(column)
    if column.null_count or pa.compute.any(pc.not_equal(lengths, length)).as_py():
        raise DataError(
            f"column {name!r}: lists of another length than {length}, or none: give each "
            "row as many numbers"
        )
    return column.flatten(), length


def _no_numbers(name: str, column: Any) -> str:
    """Return why a column has no numbers, and what to do about its type."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_temporal(kind):
        advice = "give a number in its place, such as days since a date"
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        advice = "list its values under categories in the schema, or write numbers"
    else:
        advice = "choose other columns"
    return f"column {name!r} holds {kind}, not numbers: {advice}"


def _some(values: Sequence[str]) -> str:
    more = f" and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
    return ", ".join(repr(value[:60]) for value in values[:_NAMED]) + more
