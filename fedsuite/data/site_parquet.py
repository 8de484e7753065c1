"""The default adapter of sites, which reads Parquet.

Files ``train-*.parquet`` and ``test-*.parquet`` of a folder are the two parts. Without such
files all ``*.parquet`` are pooled, and a fixed draw holds out the test part.

Inputs are one column of images, or columns of numbers:

* Images are structs with encoded bytes, as on the Hugging Face hub.
* Columns of numbers are taken in the order of ``feature-columns``. Without this key, all
  but label and id are taken in the order of their names. A column of lists counts as one
  column per list entry. Numbers of images are raw pixels, by channel and then by row.

All files of a site must have the same columns, as all sites of a run must.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedsuite.core.errors import DataError, one_line
from fedsuite.data.columns import Columns, difference
from fedsuite.data.federated import Split
from fedsuite.data.parquet import decode_files, raw_units, read_column, read_labels
from fedsuite.data.site import Site, SiteData
from fedsuite.data.specs import DatasetSpec, IntArray, RawData
from fedsuite.data.splits import split_rows

_Files = Mapping[str, Sequence[Path]]
_ADVICE = "name yours in the node's configuration"


def read_site(site: Site, spec: DatasetSpec, test_fraction: float) -> SiteData:
    """Read a site's Parquet files, an :data:`~fedsuite.data.site.Adapter`."""
    files = _find_files(site.data)
    named = replace(
        spec,
        image_column=site.image_column or spec.image_column,
        label_column=site.label_column or spec.label_column,
        id_column=site.id_column,
        train_splits=("train",),
        test_splits=("test",) if "test" in files else (),
        resize=False,
    )
    for name in (named.label_column, named.id_column):
        if name and name in site.feature_columns:
            raise DataError(
                f"{site.data}: column {name!r} is the label or the id, and named in "
                "feature-columns too: take it out"
            )
    present = _schema(files["train"][0]).names
    has_images = not site.feature_columns and named.image_column in present
    names: Columns = ()
    if spec.is_image and (has_images or site.image_column):
        arrays = _read_images(named, files)
    else:
        arrays, names = _read_table(named, files, site.feature_columns)
    ids = arrays.get("ids")
    raw = RawData(
        arrays["features"],
        arrays["labels"],
        num_train=int(arrays["num_train"]) if "test" in files else None,
        groups=ids,
        strata=arrays["labels"],
    )
    parts = split_rows(raw, test_fraction)
    train, test = (_split(raw, rows) for rows in parts)
    subjects = None if ids is None else (ids[parts[0]], ids[parts[1]])
    return SiteData(train, test, subjects, tuple(names))


def _split(raw: RawData, rows: IntArray) -> Split:
    features = torch.from_numpy(raw.features[rows])
    return Split(features, torch.from_numpy(raw.labels[rows]))


def _find_files(data: Path) -> dict[str, list[Path]]:
    if data.is_file():
        return {"train": [data]}
    if not data.is_dir():
        raise DataError(f"{data}: no such file or folder: name it with data in node-config")
    parts = {part: sorted(data.glob(f"{part}-*.parquet")) for part in ("train", "test")}
    if all(parts.values()):
        return parts
    if any(parts.values()):
        missing = next(part for part, files in parts.items() if not files)
        raise DataError(
            f"{data}: no file {missing}-*.parquet beside those of the other part: give "
            "both, or names that begin with neither"
        )
    pooled = sorted(data.glob("*.parquet"))
    if not pooled:
        raise DataError(f"{data}: no file *.parquet: put some there, or name an adapter")
    return {"train": pooled}


def _read_images(spec: DatasetSpec, files: _Files) -> dict[str, npt.NDArray[Any]]:
    for file in (file for part in files.values() for file in part):
        _check_present(file, (spec.image_column, spec.label_column, spec.id_column))
    arrays = decode_files(spec, files)
    arrays["features"] = raw_units(spec, arrays["features"])
    return arrays


def _read_table(
    spec: DatasetSpec, files: _Files, columns: Columns
) -> tuple[dict[str, npt.NDArray[Any]], Columns]:
    """Return the arrays of all files, and the names of their columns of numbers."""
    import pyarrow as pa

    features, labels, ids, num_rows = [], [], [], dict.fromkeys(files, 0)
    first, known = files["train"][0], list(columns)
    names: list[str] = []
    for part, paths in files.items():
        for file in paths:
            chosen = columns or _number_columns(file, spec)
            known = known or list(chosen)
            _refuse_other_columns(file, chosen, first, known)
            _check_present(file, (*chosen, spec.label_column, spec.id_column))
            table = _read(file, [*chosen, spec.label_column, spec.id_column])
            if not table.num_rows:
                continue
            numbers = {name: _one_column(table, name, file) for name in chosen}
            features.append(_numbers(numbers, file, spec))
            named = [_named(table, name, numbers[name]) for name in chosen]
            names = names or named
            _refuse_other_columns(file, named, first, names)
            labels.append(read_labels(spec, table, (str(file), 0)))
            if spec.id_column:
                column = read_column(table, spec.id_column, str(file))
                ids.append(column.cast(pa.string()).to_numpy(zero_copy_only=False))
            num_rows[part] += table.num_rows
    if not features:
        folder = files["train"][0].parent
        raise DataError(f"{folder}: no rows in any file: give at least one")
    arrays: dict[str, npt.NDArray[Any]] = {
        "features": np.concatenate(features),
        "labels": np.concatenate(labels),
        "num_train": np.array(num_rows["train"]),
    }
    if ids:
        arrays["ids"] = np.unique(np.concatenate(ids).astype(str), return_inverse=True)[1]
    return arrays, names


def _refuse_other_columns(
    file: Path, columns: Columns, first: Path, others: Columns
) -> None:
    """Refuse a file whose columns are not those of the first."""
    if reason := difference(columns, others):
        raise DataError(
            f"{file} and {first.name} have other columns: {file.name} {reason}: give all "
            "files the same, or name those of all with feature-columns in node-config"
        )


def _named(table: Any, name: str, numbers: npt.NDArray[np.float32]) -> str:
    """Return a column's name, with the length of its lists."""
    is_list = _is_list(table.schema.field(name).type)
    return f"{name}[{numbers.shape[1]}]" if is_list else name


def _numbers(
    columns: Mapping[str, npt.NDArray[np.float32]], file: Path, spec: DatasetSpec
) -> npt.NDArray[np.float32]:
    """Return the inputs of columns ``[rows, numbers]``, ``[rows, *input_shape]``."""
    flat = np.concatenate(list(columns.values()), axis=1)
    width = int(np.prod(spec.input_shape))
    if flat.shape[1] != width:
        raise DataError(
            f"{file}: {len(columns)} columns hold {flat.shape[1]} numbers per row: data "
            f"set {spec.name} has {width}; choose with feature-columns in node-config"
        )
    return flat.reshape(len(flat), *spec.input_shape)


def _one_column(table: Any, name: str, file: Path) -> npt.NDArray[np.float32]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = read_column(table, name, str(file))
    if _is_list(column.type):
        lengths = np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))
        column = column.flatten()
        if len(lengths) > 1 or column.null_count:
            raise DataError(
                f"{file}: column {name!r}: lists of unequal length or with missing values: "
                "give each row as many numbers"
            )
    if not _is_number(column.type):
        raise DataError(
            f"{file}: column {name!r} holds {column.type}, not numbers: choose others with "
            "feature-columns in node-config"
        )
    wide = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        values: npt.NDArray[np.float32] = wide.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        row = int(wrong[0]) * table.num_rows // len(values)
        raise DataError(
            f"{file}: column {name!r}, row {row}: not a finite number: fill missing values "
            "or drop their rows"
        )
    return values.reshape(table.num_rows, -1)


def _number_columns(file: Path, spec: DatasetSpec) -> list[str]:
    """Return the names of the columns of numbers, sorted."""
    others = {spec.label_column, spec.id_column}
    schema = _schema(file)
    columns = sorted(
        field.name
        for field in schema
        if field.name not in others and (_is_number(field.type) or _is_list(field.type))
    )
    if not columns:
        raise DataError(f"{file}: no column of numbers; it has {', '.join(schema.names)}")
    return columns


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def _check_present(file: Path, columns: Sequence[str]) -> None:
    present = _schema(file).names
    for name in columns:
        if name and name not in present:
            raise DataError(
                f"{file}: no column {name!r}; it has {', '.join(present)}: {_ADVICE}"
            )


def _schema(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


def _read(file: Path, columns: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not read_table, which would take folder names such as a=1 for columns.
        return pq.ParquetFile(file).read([name for name in columns if name])
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = f"not a readable Parquet file ({one_line(error)})"
    return DataError(f"{file}: {reason}: write it again")
