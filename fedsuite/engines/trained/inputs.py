"""From what people have to what a model takes, as training did it, or one line why not.

A table is brought into the order of the training's columns by their names. Pictures are
decoded and scaled as those of the training. Arrays are in the units of the data set's raw
values, and scaled too.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError, one_line
from fedsuite.core.logs import write_line
from fedsuite.core.reading import mapped_array, read_named
from fedsuite.data.columns import fingerprint
from fedsuite.data.federated import scale_inputs
from fedsuite.data.pictures import decode
from fedsuite.data.schema import name_and_length, one_answer
from fedsuite.data.table_files import SUFFIXES, read_table
from fedsuite.data.table_values import as_arrow, number_rows
from fedsuite.results.model_facts import ModelFacts

if TYPE_CHECKING:
    import torch

ROW_NAME = "row"
"""Column of predictions that names a picture's file."""

_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_TABLES = SUFFIXES
_ARRAYS = (".npy",)
_NAMED = 5
_BRIGHTEST = 255


def model_inputs(
    data: Any, facts: ModelFacts, write: Callable[[str], None] = write_line
) -> tuple["torch.Tensor", Sequence[str]]:
    """Return the inputs of a model, and the names of the rows where they have some.

    Parameters
    ----------
    data
        A DataFrame (pandas, polars, pyarrow), a mapping of columns, an array or tensor
        ``[rows, *input_shape]``, a file (CSV, Parquet, NPY, a picture) or a folder of
        such.
    facts
        What the model takes.
    write
        Tells in a line what is left out.

    Raises
    ------
    DataError
        If the data do not fit.
    """
    names: Sequence[str] = ()
    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        where, files = str(path), _files(path)
        if files[0].suffix.lower() in _PICTURES:
            names = [_name(file, path) for file in files]
            raw = _pictures(files, facts)
        elif files[0].suffix.lower() in _ARRAYS:
            raw = np.concatenate([_array(_load(file), facts, str(file)) for file in files])
        else:
            tables = [_of_table(_read(f, facts), facts, str(f), write) for f in files]
            raw = np.concatenate(tables)
    elif _is_table(data):
        where, raw = "data", _of_table(as_arrow(data, "data"), facts, "data", write)
    else:
        where, raw = "data", _array(data, facts, "data")
    checked = _checked(raw, facts, where)
    return scale_inputs(checked, facts.spec, "standard", facts.column_scaling), names


def _files(path: Path) -> list[Path]:
    """Return the files to read, all of one kind."""
    if path.is_file():
        if path.suffix.lower() in (*_PICTURES, *_TABLES, *_ARRAYS):
            return [path]
        raise DataError(f"{path}: expected a file {_or(*_TABLES, *_ARRAYS)}, or a picture")
    if not path.is_dir():
        raise DataError(f"{path}: there is no such file or folder")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for kind in (_PICTURES, _TABLES, _ARRAYS):
        if of_kind := [file for file in files if file.suffix.lower() in kind]:
            return of_kind
    raise DataError(f"{path}: no pictures in it, and no files {_or(*_TABLES, *_ARRAYS)}")


def _name(file: Path, path: Path) -> str:
    return file.relative_to(path).as_posix() if path.is_dir() else file.name


def _or(*endings: str) -> str:
    return f"{', '.join(f'*{e}' for e in endings[:-1])} or *{endings[-1]}"


# ------------------------------------------------------------------------------- tables


def _is_table(data: Any) -> bool:
    is_frame = hasattr(data, "columns") or hasattr(data, "column_names")
    return isinstance(data, Mapping) or is_frame


def _read(file: Path, facts: ModelFacts) -> Any:
    """Return a file's table, as the training's files were read."""
    schema = facts.schema
    if schema is None:
        return read_table(file)
    return read_table(file, texts=schema.categories, values=schema.declared_values())


def _of_table(
    table: Any, facts: ModelFacts, where: str, write: Callable[[str], None]
) -> npt.NDArray[Any]:
    """Return the rows of a table in the order of the training's columns."""
    encoded = _encoded_column(table) if facts.is_image and not facts.columns else ""
    if encoded:
        return np.stack(list(_decoded(table.column(encoded), facts, where)))
    present = list(table.column_names)
    faults: list[str] = []
    if facts.schema is not None:
        used = {column.name for column in facts.schema.of_columns}
        # The target and whom a row is about have no place among the inputs.
        used |= {*facts.schema.targets, facts.schema.id_column}
        rows = facts.schema.encoded(table, faults=faults)
    else:
        columns = facts.columns or _order_of(present, facts, where)
        named = dict(map(name_and_length, columns))
        used, parts = set(named), []
        for name, length in named.items():
            try:
                parts.append(number_rows(table, name, length, refuses=True))
            except DataError as error:
                faults.append(str(error))
        rows = np.concatenate(parts, axis=1) if parts else np.empty((0, 0), np.float32)
    if faults:
        raise DataError(f"{where}: {one_answer(faults)}")
    if extra := [name for name in present if name not in used]:
        write(f"{where}: left out, for it was not trained on: {_some(extra)}")
    return rows.reshape(len(rows), *facts.input_shape)


def _order_of(present: Sequence[str], facts: ModelFacts, where: str) -> Sequence[str]:
    """Return the order of columns of which the run knows the hash alone."""
    if not facts.columns_hash:
        raise DataError(
            f"{where}: this run knows no names of its columns, so that their order cannot "
            f"be told: give an array [rows, {', '.join(map(str, facts.input_shape))}] in "
            "the order of the training"
        )
    # The columns beside the inputs, such as the label, may be one or two.
    for left_out in itertools.chain.from_iterable(
        itertools.combinations(present, count) for count in range(3)
    ):
        stay = [name for name in present if name not in left_out]
        for order in (stay, sorted(stay)):
            if fingerprint(order) == facts.columns_hash:
                return order
    raise DataError(
        f"{where}: its columns {_some(present)} are not those of the training, of which "
        f"this run knows the hash {facts.columns_hash[:12]} alone: give the names of the "
        "training, in its order, and no others; each site's log has them"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(str(name))[:80] for name in names[:_NAMED]) + more


# ------------------------------------------------------------------------------ pictures


def _encoded_column(table: Any) -> str:
    """Return the column of encoded pictures, as on the Hugging Face hub; empty of none."""
    import pyarrow as pa

    for field in table.schema:
        is_struct = pa.types.is_struct(field.type)
        if is_struct and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
    return ""


def _decoded(column: Any, facts: ModelFacts, where: str) -> Iterator[npt.NDArray[Any]]:
    for row, entry in enumerate(column):
        encoded = entry["bytes"].as_py() if entry.is_valid else None
        yield _decode(encoded or b"", facts, f"{where}: row {row}")


def _pictures(files: Sequence[Path], facts: ModelFacts) -> npt.NDArray[Any]:
    if not facts.is_image or len(facts.input_shape) != 3:
        raise DataError(
            f"{files[0]}: a picture, and the model takes {_shape(facts)}: give tables or "
            "arrays"
        )
    return np.stack([_decode(_picture(file), facts, str(file)) for file in files])


def _picture(file: Path) -> bytes:
    try:
        return read_named(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({one_line(error)})") from error


def _decode(encoded: bytes, facts: ModelFacts, where: str) -> npt.NDArray[Any]:
    channels, height, width = facts.input_shape
    try:
        pixels = decode(encoded, channels, height, width, resize=False)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    if facts.max_value == _BRIGHTEST:
        return pixels
    return pixels * np.float32(facts.max_value / _BRIGHTEST)


# -------------------------------------------------------------------------------- arrays


def _load(file: Path) -> npt.NDArray[Any]:
    try:
        return mapped_array(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: no array of NumPy ({one_line(error)})") from error


def _array(data: Any, facts: ModelFacts, where: str) -> npt.NDArray[Any]:
    """Return an array ``[rows, *input_shape]`` of numbers."""
    if hasattr(data, "detach"):
        data = data.detach().cpu().numpy()
    try:
        array = np.asarray(data)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: no array ({one_line(error)})") from error
    if array.dtype.kind not in "iufb":
        raise DataError(f"{where}: an array of {array.dtype}, not of numbers")
    if facts.is_image and array.dtype.kind == "f" and array.size:
        _refuse_scaled(float(array.max()), facts, where)
    if facts.words and array.dtype.kind not in "iu":
        raise DataError(f"{where}: an array of {array.dtype}, and words are whole numbers")
    if array.shape[1:] != facts.input_shape or not array.ndim:
        raise DataError(
            f"{where}: an array of shape {list(array.shape)}, and the model takes "
            f"[rows, {', '.join(map(str, facts.input_shape))}]"
        )
    return array.astype(np.int64 if facts.words else np.float32, copy=False)


def _shape(facts: ModelFacts) -> str:
    return f"inputs of shape {list(facts.input_shape)}"


def _checked(raw: npt.NDArray[Any], facts: ModelFacts, where: str) -> npt.NDArray[Any]:
    """Refuse no rows, values that are no numbers, and pixels out of their range."""
    if not len(raw):
        raise DataError(f"{where}: has no rows")
    # Missing values become means, and a schema that has none has refused them.
    filled = facts.column_scaling is not None and facts.schema is not None
    finite = np.isfinite(raw) | (filled & np.isnan(raw))
    if raw.dtype.kind == "f" and not finite.all():
        raise DataError(f"{where}: holds values that are no finite numbers")
    if not facts.is_image:
        return raw
    least, largest = float(raw.min()), float(raw.max())
    if least < 0 or largest > facts.max_value:
        raise DataError(
            f"{where}: pixels lie in {least:g} to {largest:g}: give raw values of 0 to "
            f"{facts.max_value}, which are scaled as in training"
        )
    return raw


def _refuse_scaled(largest: float, facts: ModelFacts, where: str) -> None:
    if facts.max_value > 1 and 0 < largest <= 1:
        raise DataError(
            f"{where}: pixels go to {largest:g} only and look scaled: give raw values of 0 "
            f"to {facts.max_value}, which are scaled as in training"
        )
