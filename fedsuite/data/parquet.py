"""Image data sets stored as Parquet in the layout of the Hugging Face hub.

Images are structs of encoded bytes (see :mod:`fedsuite.data.pictures`) beside an integer
label. All images are decoded once into one 8-bit array; see :mod:`fedsuite.data.cache`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fedsuite.core.errors import DataError, one_line
from fedsuite.core.extras import naming_extras
from fedsuite.core.progress import Work
from fedsuite.data.cache import load_or_build
from fedsuite.data.folders import file_identity, missing_folder
from fedsuite.data.pictures import decode
from fedsuite.data.specs import DatasetSpec, RawData, Source
from fedsuite.data.table_files import opened_parquet, rows_at_once, unreadable

HUB = "hf://datasets/"
"""Prefix of the hub's repositories for the ``datasets`` library."""

_BRIGHTEST = 255  # of an encoded image
_DECODER_VERSION = 2  # part of the cache key: raise it when decoding changes
_ROWS_PER_BATCH = 1024

ArrowTable: TypeAlias = Any  # pyarrow ships no types


@dataclass(frozen=True)
class _Table:
    """One file, or one split of the hub."""

    where: str
    num_rows: int
    tables: Iterable[ArrowTable]


class Parquet(Source):
    """Images of Parquet files."""

    @override
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        folder = data_dir / spec.folder if data_dir is not None else None
        if folder is not None and folder.is_dir():
            files = find_files(spec, folder)
            identities = [file_identity(file) for part in files.values() for file in part]
            entry = _cache_entry(spec, identities)
            arrays = load_or_build(entry, lambda: decode_files(spec, files))
        else:
            entry = _cache_entry(spec, [spec.hub_id])
            arrays = load_or_build(entry, lambda: _decode(spec, _hub_sources(spec, folder)))
        return RawData(
            features=arrays["features"],
            labels=np.asarray(arrays["labels"], np.int64),
            ids=np.asarray(arrays["ids"], np.int64) if "ids" in arrays else None,
            num_train=int(arrays["num_train"]) if spec.test_splits else None,
        )


def decode_files(
    spec: DatasetSpec, files: Mapping[str, Sequence[Path]]
) -> dict[str, npt.NDArray[Any]]:
    """Decode the files of each split, in the order of the splits, without the cache.

    Returns
    -------
    dict
        ``features`` (8-bit), ``labels``, ``num_train`` (the number of training rows), and
        ``ids`` where the data set has a column of ids.
    """
    opened = {s: [_open(spec, f) for f in part] for s, part in files.items()}
    return _decode(spec, opened)


def load_images(spec: DatasetSpec, folder: Path) -> npt.NDArray[np.uint8]:
    """Read images from all ``*.parquet`` of a folder, in the order of the files' names.

    Only the column ``spec.image_column`` is read. The array is 8-bit ``[rows,
    *input_shape]``. It may be mapped from a file: never write into it.
    """
    if not folder.is_dir():
        raise DataError(f"folder {folder} does not exist")
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise DataError(f"no file *.parquet in {folder}")
    bare = replace(
        spec, label_column="", id_column="", train_splits=("images",), test_splits=()
    )
    entry = _cache_entry(bare, [file_identity(file) for file in files])
    arrays = load_or_build(
        entry, lambda: _decode(bare, {"images": [_open(bare, file) for file in files]})
    )
    return arrays["features"]


def raw_units(spec: DatasetSpec, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return decoded images in the units of the data set's raw features."""
    if spec.max_value == _BRIGHTEST:
        return images
    return images * np.float32(spec.max_value / _BRIGHTEST)


def find_files(spec: DatasetSpec, folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split, in shard order.

    The files lie in ``folder`` or, as in a clone of the hub's repository, in ``folder /
    spec.hub_folder``.
    """
    splits = spec.train_splits + spec.test_splits
    nested = folder / spec.hub_folder
    base = nested if nested.is_dir() else folder
    files = {split: sorted(base.glob(f"{split}-*.parquet")) for split in splits}
    for split, shards in files.items():
        if not shards:
            raise DataError(
                f"data set {spec.name}: no file {split}-*.parquet in {base}; "
                f"put {', '.join(spec.file_patterns)} of {spec.hub_id} there"
            )
        _check_shards(spec, shards)
    return files


def _check_shards(spec: DatasetSpec, files: Sequence[Path]) -> None:
    """Refuse a split with a missing shard, as the files' names tell."""
    numbers = [re.search(r"-(\d+)-of-(\d+)", file.name) for file in files]
    present = [(int(n[1]), int(n[2])) for n in numbers if n is not None]
    if not present:
        return
    total = present[0][1]
    if sorted(present) != [(i, total) for i in range(total)]:
        raise DataError(
            f"data set {spec.name}: {files[0].parent} should hold shards 0 to {total - 1} "
            f"of {total}, once each, but holds {', '.join(f.name for f in files)}"
        )


def _cache_entry(spec: DatasetSpec, sources: Sequence[str]) -> str:
    """Return the cache entry's name, a hash of all that decides the arrays."""
    columns = (spec.image_column, spec.label_column, spec.id_column)
    splits = (spec.train_splits, spec.test_splits)
    parts = [_DECODER_VERSION, spec.input_shape, columns, splits, *sources]
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
    return f"{spec.name}-{digest[:20]}"


def _open(spec: DatasetSpec, file: Path) -> _Table:
    import pyarrow as pa

    try:
        parquet = opened_parquet(file)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error) from error

    columns = _wanted_columns(spec, parquet.schema_arrow.names, str(file))

    def tables() -> Iterator[ArrowTable]:
        try:
            rows = rows_at_once(file, parquet, columns, _ROWS_PER_BATCH)
            for batch in parquet.iter_batches(rows, columns=columns):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file}: cannot be read ({one_line(error)})") from error

    return _Table(str(file), parquet.metadata.num_rows, tables())


def _hub_sources(spec: DatasetSpec, folder: Path | None) -> dict[str, Sequence[_Table]]:
    """Fetch the wanted splits through flwr-datasets."""
    with naming_extras(f"data set {spec.name}, from the hub,"):
        from flwr_datasets import FederatedDataset

    splits = spec.train_splits + spec.test_splits
    base = f"{HUB}{spec.hub_id}/{spec.hub_folder}"
    hub = FederatedDataset(
        dataset="parquet",
        partitioners={},
        shuffle=False,
        data_files={split: f"{base}/{split}-*.parquet" for split in splits},
    )
    sources: dict[str, Sequence[_Table]] = {}
    for split in splits:
        where = f"{spec.hub_id}, split {split}"
        try:
            rows = hub.load_split(split)
        except Exception as error:  # whatever the hub's client raises, the remedy is one
            reason = (
                f"the hub did not deliver {spec.hub_id} ({type(error).__name__}: "
                f"{one_line(error)})"
            )
            raise missing_folder(spec, folder, reason) from error
        columns = _wanted_columns(spec, rows.column_names, where)
        rows = rows.select_columns(columns).with_format("arrow")
        sources[split] = [_Table(where, rows.num_rows, rows.iter(_ROWS_PER_BATCH))]
    return sources


def _wanted_columns(spec: DatasetSpec, present: Sequence[str], where: str) -> list[str]:
    """Return the columns to read; refuse a file that lacks one, or has it twice."""
    wanted = [c for c in (spec.image_column, spec.label_column, spec.id_column) if c]
    for name in wanted:
        if name not in present:
            raise DataError(f"{where}: no column {name!r}; it has {', '.join(present)}")
        if present.count(name) > 1:
            raise DataError(f"{where}: column {name!r} is there twice: rename one")
    return wanted


def _decode(
    spec: DatasetSpec, sources: Mapping[str, Sequence[_Table]]
) -> dict[str, npt.NDArray[Any]]:
    """Decode all rows of all splits, in the order of the splits."""
    num_rows = {split: sum(s.num_rows for s in part) for split, part in sources.items()}
    total = sum(num_rows.values())
    if not total:
        raise DataError(f"data set {spec.name}: the files hold no rows")
    try:
        features = np.empty((total, *spec.input_shape), np.uint8)
        labels = np.empty(total, np.int64)
    except (ValueError, MemoryError) as error:
        raise DataError(
            f"data set {spec.name}: the files tell of {total:,} rows, which no memory holds"
        ) from error
    ids: list[npt.NDArray[Any]] = []
    row = 0
    with Work(f"decoding {spec.name}", total) as decoding:
        for source in (source for part in sources.values() for source in part):
            first_row = row
            for table in source.tables:
                if row + table.num_rows - first_row > source.num_rows:
                    raise _other_rows(source)
                rows = slice(row, row + table.num_rows)
                position = (source.where, row - first_row)
                _decode_images(spec, table, position, features[rows])
                if spec.label_column:
                    labels[rows] = read_labels(spec, table, position)
                if spec.id_column:
                    column = read_column(table, spec.id_column, source.where)
                    ids.append(column.to_numpy(zero_copy_only=False))
                row = rows.stop
                decoding.show(row)
            if row - first_row != source.num_rows:
                # The arrays would keep what was in memory before.
                raise _other_rows(source)
    arrays: dict[str, npt.NDArray[Any]] = {
        "features": features,
        "num_train": np.array(sum(num_rows[split] for split in spec.train_splits)),
    }
    if spec.label_column:
        arrays["labels"] = labels
    if ids:
        arrays["ids"] = np.unique(np.concatenate(ids), return_inverse=True)[1]
    return arrays


def _other_rows(source: _Table) -> DataError:
    return DataError(
        f"{source.where}: it tells of {source.num_rows:,} rows, and holds others: it is "
        "damaged"
    )


def read_column(table: ArrowTable, name: str, where: str) -> Any:
    """Return one column as a single Arrow array; refuse missing values."""
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise DataError(f"{where}: column {name!r} has {column.null_count} missing values")
    return column


def read_labels(
    spec: DatasetSpec, table: ArrowTable, position: tuple[str, int]
) -> npt.NDArray[np.int64]:
    """Return the labels of one table; ``position`` is the table's source and first row."""
    import pyarrow as pa

    where, first_row = position
    column = read_column(table, spec.label_column, where)
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(
            f"{where}: column {spec.label_column!r} holds {column.type}, not whole numbers"
        )
    labels: npt.NDArray[np.int64]
    labels = column.to_numpy(zero_copy_only=False).astype(np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= spec.num_classes))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{where}: column {spec.label_column!r}, row {first_row + row}: label "
            f"{labels[row]} is outside 0 to {spec.num_classes - 1}"
        )
    return labels


def _decode_images(
    spec: DatasetSpec,
    table: ArrowTable,
    position: tuple[str, int],
    out: npt.NDArray[np.uint8],
) -> None:
    """Decode the image column of one table into ``out[rows, channels, height, width]``."""
    import pyarrow as pa

    where, first_row = position
    column = read_column(table, spec.image_column, where)
    if not pa.types.is_struct(column.type) or column.type.get_field_index("bytes") < 0:
        raise DataError(
            f"{where}: column {spec.image_column!r} holds {column.type}, not a struct with "
            "the images' bytes"
        )
    for row, encoded in enumerate(column.field("bytes")):
        try:
            if not (isinstance(encoded, pa.BinaryScalar) and encoded.is_valid):
                raise DataError("no image bytes")
            out[row] = decode(encoded.as_buffer(), *spec.input_shape, resize=spec.resize)
        except DataError as error:
            raise DataError(f"{where}: row {first_row + row}: {error}") from error
