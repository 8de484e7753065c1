"""The default adapter of sites, which reads files of tables and of pictures.

Files ``train-*.parquet`` and ``test-*.parquet`` of a folder are the two parts, or such
``.csv``. A site with files of one part alone has no rows of the other. Without such files
all are pooled, and a fixed draw holds out the test part.

Inputs are one column of images, or columns of numbers:

* Images are structs with encoded bytes, as on the Hugging Face hub.
* With a schema (:mod:`fedsuite.data.schema`), its columns are taken, in its order.
* Without one, columns of numbers are taken in the order of ``feature-columns``, and without
  this key all but label and id in the order of their names. A column of lists counts as one
  column per list entry. Numbers of images are raw pixels, by channel and then by row.

Pictures may lie in folders of their classes too (:mod:`fedsuite.data.picture_folders`).

All files of a site must have the same columns, as all sites of a run must. All that is
wrong with the files is said in one error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedsuite.core.errors import DataError
from fedsuite.data.columns import Columns, difference
from fedsuite.data.federated import Split
from fedsuite.data.parquet import decode_files, raw_units
from fedsuite.data.picture_folders import has_picture_folders, read_picture_folders
from fedsuite.data.schema import TableSchema, one_answer
from fedsuite.data.site import Site, SiteData
from fedsuite.data.specs import DatasetSpec, IntArray, RawData
from fedsuite.data.splits import split_rows
from fedsuite.data.table_files import (
    SUFFIXES,
    arrow_schema,
    read_table,
    table_files,
)
from fedsuite.data.table_values import (
    class_numbers,
    is_list,
    is_number,
    number_rows,
    texts_of,
)

_Files = Mapping[str, Sequence[Path]]
_Arrays = dict[str, npt.NDArray[Any]]
_ADVICE = "choose with feature-columns in node-config"
_NAME_YOURS = "name yours in the node's configuration"
_MOST_FAULTS = 12


def read_site(site: Site, spec: DatasetSpec, test_fraction: float) -> SiteData:
    """Read a site's files, an :data:`~fedsuite.data.site.Adapter`."""
    if spec.is_image and has_picture_folders(site.data):
        arrays, has_test = read_picture_folders(spec, site.data)
        return _divided(arrays, has_test, test_fraction, ())
    arrays, has_test, names = read_files(site, spec)
    return _divided(arrays, has_test, test_fraction, tuple(names))


def read_files(site: Site, spec: DatasetSpec) -> tuple[_Arrays, bool, Columns]:
    """Return the arrays of a site's files, whether some are a test part, and the columns.

    The arrays are ``features``, ``labels`` (those of the test part last), ``num_train``
    and, where the site names such columns, ``ids`` and ``owners``.
    """
    files = _find_files(site.data)
    named = replace(
        spec,
        image_column=site.image_column or spec.image_column,
        label_column=site.label_column or spec.label_column,
        id_column=site.id_column,
        train_splits=("train",) if files["train"] else (),
        test_splits=("test",) if files.get("test") else (),
        resize=spec.resize and not spec.hub_id,
    )
    for name in (named.label_column, named.id_column):
        if name and name in site.feature_columns:
            raise DataError(
                f"{site.data}: column {name!r} is the label or the id, and named in "
                "feature-columns too: take it out"
            )
    names: Columns = ()
    if spec.is_image and _has_images(named, site, files):
        arrays = _read_images(named, files)
    else:
        arrays, names = _read_tables(named, site, files)
    return arrays, "test" in files, names


def _divided(
    arrays: _Arrays, has_test: bool, test_fraction: float, names: tuple[str, ...]
) -> SiteData:
    ids, labels = arrays.get("ids"), arrays["labels"]
    by_class = labels.ndim == 1 and labels.dtype.kind in "iu"
    raw = RawData(
        arrays["features"],
        labels,
        num_train=int(arrays["num_train"]) if has_test else None,
        groups=ids,
        strata=labels if by_class else np.zeros(len(labels), np.int64),
    )
    parts = split_rows(raw, test_fraction)
    train, test = (_split(raw, rows) for rows in parts)
    subjects = None if ids is None else (ids[parts[0]], ids[parts[1]])
    return SiteData(train, test, subjects, names)


def _split(raw: RawData, rows: IntArray) -> Split:
    features = torch.from_numpy(raw.features[rows])
    return Split(features, torch.from_numpy(raw.labels[rows]))


def _find_files(data: Path) -> dict[str, list[Path]]:
    if data.is_file():
        return {"train": [data]}
    if not data.is_dir():
        raise DataError(f"{data}: no such file or folder: name it with data in node-config")
    parts = {part: table_files(data, f"{part}-*") for part in ("train", "test")}
    if not any(parts.values()):
        parts = {part: table_files(data, f"{part}.*") for part in ("train", "test")}
    if any(parts.values()):
        return parts
    pooled = table_files(data)
    if not pooled:
        kinds = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise DataError(f"{data}: no file {kinds}: put some there, or name an adapter")
    return {"train": pooled}


def _has_images(spec: DatasetSpec, site: Site, files: _Files) -> bool:
    if site.image_column:
        return True
    present = arrow_schema(_every(files)[0]).names
    return not site.feature_columns and spec.image_column in present


def _read_images(spec: DatasetSpec, files: _Files) -> _Arrays:
    faults = []
    for file in _every(files):
        present = arrow_schema(file).names
        for name in (spec.image_column, spec.label_column, spec.id_column):
            if name and name not in present:
                faults.append(f"{file}: no column {name!r}; it has {', '.join(present)}")
    _refuse(faults, _NAME_YOURS)
    arrays = decode_files(spec, {part: paths for part, paths in files.items() if paths})
    arrays["features"] = raw_units(spec, arrays["features"])
    return arrays


def _every(files: _Files) -> list[Path]:
    return [file for part in files.values() for file in part]


def _refuse(faults: Sequence[str], advice: str = "") -> None:
    """Raise what is wrong with all files, in one line."""
    if not faults:
        return
    more = len(faults) - _MOST_FAULTS
    shown = [*faults[:_MOST_FAULTS], *([f"{more} more"] if more > 0 else [])]
    raise DataError(one_answer(shown) + (f": {advice}" if advice else ""))


class _Reader:
    """Reads each file of a site, and gathers what is wrong with all of them."""

    def __init__(self, spec: DatasetSpec, site: Site, first: Path) -> None:
        self._spec, self._site, self._first = spec, site, first
        self._chosen: Columns = ()
        self.names: Columns = ()
        self.faults: list[str] = []

    def read(self, file: Path) -> _Arrays | None:
        """Return a file's arrays; None of a file without rows, or with faults."""
        before = len(self.faults)
        schema = self._spec.schema
        try:
            read = self._by_schema if schema is not None else self._by_name
            arrays = read(file)
        except DataError as error:
            self._fault(file, str(error))
            return None
        if len(self.faults) > before:
            return None
        return arrays if len(arrays["labels"]) else None

    def _fault(self, file: Path, words: str) -> None:
        self.faults.append(words if str(file) in words else f"{file}: {words}")

    def _by_schema(self, file: Path) -> _Arrays:
        """Return the arrays of the columns that the schema names."""
        schema, site = self._spec.schema, self._site
        assert schema is not None
        own = site.feature_columns or tuple(c.name for c in schema.of_columns)
        if len(own) != len(schema.columns):
            raise DataError(
                f"feature-columns names {len(own)} columns, and the schema "
                f"{len(schema.columns)}: name the site's own in the schema's order"
            )
        kinds = dict(zip(own, schema.dtypes.values(), strict=True))
        label = site.label_column or schema.target
        subject = site.id_column or schema.id_column
        texts = {name for name, kind in kinds.items() if kind == "category"}
        texts |= {label} if schema.classes else set()
        texts |= {subject, site.owner_column} - {""}
        values = schema.declared_values(own, label)
        table = read_table(file, texts=texts, values=values)
        faults: list[str] = []
        rows = schema.encoded(table, own, faults=faults)
        arrays = {"features": rows, **self._of_rows(table, label, subject, faults)}
        for fault in faults:
            self._fault(file, fault)
        self.names = schema.inputs
        return arrays

    def _by_name(self, file: Path) -> _Arrays:
        """Return the arrays of columns of numbers."""
        spec, site = self._spec, self._site
        present = arrow_schema(file)
        chosen: Columns = site.feature_columns or self._number_columns(file, present)
        self._chosen = self._chosen or list(chosen)
        self._refuse_other_columns(file, chosen, self._chosen)
        texts = {spec.id_column, site.owner_column} - {""}
        owner = site.owner_column
        wanted = dict.fromkeys((*chosen, spec.label_column, spec.id_column, owner))
        for name in filter(None, wanted):
            if name not in present.names:
                has = ", ".join(present.names)
                self._fault(file, f"no column {name!r}; it has {has}: {_NAME_YOURS}")
            elif len(present.get_all_field_indices(name)) > 1:
                self._fault(file, f"column {name!r} is there twice: rename one")
        once = {n for n in present.names if len(present.get_all_field_indices(n)) == 1}
        here = [name for name in wanted if name in once]
        table = read_table(file, here, texts)
        faults: list[str] = []
        numbers: dict[str, npt.NDArray[np.float32]] = {}
        for name in (name for name in chosen if name in once):
            try:
                numbers[name] = self._numbers(table, name)
            except DataError as error:
                faults.append(str(error))
        arrays = self._of_rows(table, spec.label_column, spec.id_column, faults)
        for fault in faults:
            self._fault(file, fault)
        if len(numbers) < len(chosen) or not len(table):
            return {**arrays, "labels": np.empty(0, np.int64)}
        named = [_named(table, name, numbers[name]) for name in chosen]
        self.names = self.names or named
        self._refuse_other_columns(file, named, self.names)
        return {**arrays, "features": self._inputs(file, list(numbers.values()))}

    def _numbers(self, table: Any, name: str) -> npt.NDArray[np.float32]:
        kind = table.schema.field(name).type
        length = _length(table, name) if is_list(kind) and len(table) else 0
        try:
            return number_rows(table, name, length, refuses=True)
        except DataError as error:
            advice = ", or set missing to mean or indicator in the schema"
            words = str(error).replace(advice, "")
            raise DataError(f"{words}, or {_ADVICE}") from None

    def _of_rows(self, table: Any, label: str, subject: str, faults: list[str]) -> _Arrays:
        """Return the labels of a table's rows, and what else is known of each."""
        schema, spec = self._spec.schema, self._spec
        arrays: _Arrays = {"labels": np.empty(0, np.int64)}
        for kind, name in (
            ("labels", label),
            ("ids", subject),
            ("owners", self._site.owner_column),
        ):
            if not name or (kind != "labels" and name not in table.column_names):
                continue
            try:
                if kind != "labels":
                    arrays[kind] = np.array(texts_of(table, name), dtype=np.str_)
                elif schema is not None:
                    arrays[kind] = schema.labels(table, name)
                elif name in table.column_names:
                    arrays[kind] = class_numbers(table, name, (), spec.num_classes)
            except DataError as error:
                faults.append(str(error))
        for kind, name in (("ids", subject), ("owners", self._site.owner_column)):
            if name and kind not in arrays and schema is not None:
                key = "id-column" if kind == "ids" else "client-column"
                faults.append(f"no column {name!r}, which {key} names")
        return arrays

    def _number_columns(self, file: Path, present: Any) -> list[str]:
        """Return the names of the columns of numbers, sorted."""
        others = {self._spec.label_column, self._spec.id_column, self._site.owner_column}
        fields = [field for field in present if field.name not in others]
        columns = sorted(
            field.name for field in fields if is_number(field.type) or is_list(field.type)
        )
        if not columns:
            raise DataError(f"no column of numbers; it has {', '.join(present.names)}")
        return columns

    def _refuse_other_columns(self, file: Path, columns: Columns, others: Columns) -> None:
        """Note a file whose columns are not those of the first."""
        if reason := difference(columns, others):
            raise DataError(
                f"{file} and {self._first.name} have other columns: {file.name} {reason}: "
                "give all files the same, or name those of all with feature-columns in "
                "node-config"
            )

    def _inputs(
        self, file: Path, columns: Sequence[npt.NDArray[np.float32]]
    ) -> npt.NDArray[np.float32]:
        """Return the inputs of columns ``[rows, numbers]``, ``[rows, *input_shape]``."""
        flat = np.concatenate(columns, axis=1)
        width = int(np.prod(self._spec.input_shape))
        if flat.shape[1] != width:
            left_out = [
                f"{field.name!r} ({field.type})"
                for field in arrow_schema(file)
                if not is_number(field.type)
                and not is_list(field.type)
                and field.name not in (self._spec.label_column, self._spec.id_column)
            ]
            others = f"; not numbers are {', '.join(left_out[:5])}" if left_out else ""
            raise DataError(
                f"{len(columns)} columns hold {flat.shape[1]} numbers per row: data set "
                f"{self._spec.name} has {width}{others}; {_ADVICE}"
            )
        return flat.reshape(len(flat), *self._spec.input_shape)


def _read_tables(spec: DatasetSpec, site: Site, files: _Files) -> tuple[_Arrays, Columns]:
    """Return the arrays of all files, and the names of their columns of numbers."""
    first = _every(files)[0]
    reader = _Reader(spec, site, first)
    parts = {part: [reader.read(file) for file in paths] for part, paths in files.items()}
    _refuse(reader.faults)
    kept = {part: [a for a in arrays if a is not None] for part, arrays in parts.items()}
    every = [arrays for part in kept.values() for arrays in part]
    if not every:
        raise DataError(f"{first.parent}: no rows in any file: give at least one")
    joined: _Arrays = {
        name: np.concatenate([arrays[name] for arrays in every]) for name in every[0]
    }
    train_rows = sum(len(arrays["labels"]) for arrays in kept["train"])
    joined["num_train"] = np.array(train_rows)
    if "ids" in joined:
        joined["ids"] = np.unique(joined["ids"], return_inverse=True)[1]
    return joined, reader.names


def _length(table: Any, name: str) -> int:
    """Return how many numbers each list of a column has; refuse lists of several."""
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(table.column(name))).to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise DataError(
            f"column {name!r}: lists of unequal length or with missing values: give each "
            "row as many numbers"
        )
    return int(lengths[0])


def _named(table: Any, name: str, numbers: npt.NDArray[np.float32]) -> str:
    """Return a column's name, with the length of its lists."""
    of_lists = is_list(table.schema.field(name).type)
    return f"{name}[{numbers.shape[1]}]" if of_lists else name


def schema_of(site: Site, spec: DatasetSpec) -> TableSchema | None:
    """Return the schema that a site's rows follow; refuse another than the site's own.

    Raises
    ------
    DataError
        Naming what differs; this belongs into the site's own log.
    """
    asked, own = spec.schema, site.schema
    if asked is None and own is None:
        return None
    if asked is None or own is None:
        has, lacks = ("run", "site") if own is None else ("site", "run")
        raise DataError(
            f"the {has} has a table schema, and the {lacks} none: give both the same file, "
            "by schema of the experiment, and by schema of node-config"
        )
    if reason := asked.difference(own):
        raise DataError(
            f"the run's table schema is not the site's: {reason} ('this one' is the "
            "run's): agree on one file, and hand it to all"
        )
    return asked
