"""Reading, checks and scaling of a site's data on its node."""

from dataclasses import replace
from typing import cast

import numpy as np
import torch

from fedsuite.core.column_scaling import ColumnScaling
from fedsuite.core.errors import ConfigError, DataError, FedsuiteError, one_line
from fedsuite.core.plug_ins import import_code, is_code
from fedsuite.data.client_validation import validation_masks
from fedsuite.data.federated import ClientData, Split, scale_inputs
from fedsuite.data.site import Adapter, Site, SiteData
from fedsuite.data.site_parquet import read_site, schema_of
from fedsuite.data.specs import DatasetSpec, IntArray

_RAW_TYPES = (torch.float32, torch.uint8)
_WORDS = torch.int64
_LABELS = {
    "class": (1, torch.int64, "one int64 class"),
    "labels": (2, torch.float32, "a float32 0 or 1 for each label"),
    "number": (1, torch.float32, "one float32 number"),
    "time and event": (2, torch.float32, "a float32 time, and 1 or 0 for the event,"),
}
_TIME_AND_EVENT = 2


def load_site_rows(
    site: Site,
    spec: DatasetSpec,
    test_fraction: float,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> ClientData:
    """Read a site's data and check it, in the data set's raw units.

    Raises
    ------
    FedsuiteError
        If the data cannot be used.
    """
    adapter = _load_adapter(site)
    try:
        schema_of(site, spec)
        data = adapter(site, spec, test_fraction)
    except FedsuiteError as error:
        raise DataError(f"site {site.name}: {error}") from error
    except Exception as error:
        # An adapter is somebody else's code and may raise anything.
        raise DataError(
            f"site {site.name}: adapter {site.adapter or 'parquet'} failed on {site.data} "
            f"({type(error).__name__}: {one_line(error)}): mend it or the data"
        ) from error
    where = f"site {site.name}: {site.data}"
    rows = check_rows(where, "adapter", spec, _with_both_parts(data))
    if rows.owners is not None:
        raise DataError(f"{where}: owners have no use, a site being one: leave them out")
    (_, train), (_, test) = _parts_of(rows)
    validation = None
    if validation_fraction:
        ids = None if rows.ids is None else rows.ids[0]
        train, validation = _hold_out(train, ids, validation_fraction, seed)
    return ClientData(train, test, validation, rows.columns)


def _with_both_parts(data: object) -> object:
    """Return a site's rows with an empty part in the place of one that it lacks."""
    if not isinstance(data, SiteData) or (data.train is None) == (data.test is None):
        return data
    there = data.test if data.train is None else data.train
    if not isinstance(there, Split):
        return data
    none = replace(there, features=there.features[:0], labels=there.labels[:0])
    return replace(data, train=data.train or none, test=data.test or none)


def scaled_rows(
    rows: ClientData, spec: DatasetSpec, scaling: str, columns: ColumnScaling | None = None
) -> ClientData:
    """Return rows as the key ``scaling`` says, and by the means of all sites' columns."""
    train, test, validation = (
        None if part is None else _scaled(part, spec, scaling, columns)
        for part in (rows.train, rows.test, rows.validation)
    )
    assert train is not None
    assert test is not None
    return ClientData(train, test, validation, rows.columns)


def _hold_out(
    train: Split, ids: IntArray | None, fraction: float, seed: int
) -> tuple[Split, Split]:
    """Return the rows to train on and those to validate on; subjects stay whole."""
    rows = np.arange(len(train))
    # No node knows its client's number: all sites draw from one stream.
    (is_out,) = validation_masks([rows], train.labels.numpy(), ids, fraction, seed)
    stays, out = (
        replace(train, features=train.features[part], labels=train.labels[part])
        for part in (torch.from_numpy(~is_out), torch.from_numpy(is_out))
    )
    return stays, out


def site_data(where: str, reader: str, data: object) -> SiteData:
    """Return the rows of somebody else's code; refuse what has not the form of SiteData.

    Parameters
    ----------
    where, reader
        Place of the data, and what read it, for errors.
    data
        What the reader returned.

    Raises
    ------
    DataError
        If anything of it has another type or length.
    """
    if not isinstance(data, SiteData):
        raise DataError(
            f"{where}: the {reader} returned a {type(data).__name__}: return a SiteData"
        )
    for name, part in (("training", data.train), ("test", data.test)):
        _check_form(f"{where}, {name} part", part)
    if not any(len(part) for _, part in _parts_of(data)):
        raise DataError(f"{where}: no rows: give at least one")
    if data.ids is not None:
        _check_names(where, "ids", data, data.ids)
        common = set(data.ids[0].tolist()) & set(data.ids[1].tolist())
        if common:
            raise DataError(
                f"{where}: {len(common)} ids are in both the training and the test part: "
                "move all rows of an id to one of them"
            )
    if data.owners is not None:
        _check_names(where, "owners", data, data.owners)
    columns: object = data.columns
    if not isinstance(columns, tuple) or not all(isinstance(n, str) for n in columns):
        raise DataError(f"{where}: columns = {columns!r}: give a tuple of names"[:300])
    return data


def check_rows(where: str, reader: str, spec: DatasetSpec, data: object) -> SiteData:
    """Return rows that clients can train on.

    Parameters
    ----------
    where, reader, data
        As :func:`site_data` takes them.
    spec
        The data set that the rows must match.

    Raises
    ------
    DataError
        If no client could train on the rows.
    """
    rows = site_data(where, reader, data)
    for name, part in _parts_of(rows):
        _check_part(f"{where}, {name} part", spec, part)
    return rows


def _parts_of(data: SiteData) -> list[tuple[str, Split]]:
    """Return the two parts of rows that have been checked."""
    return [("training", cast(Split, data.train)), ("test", cast(Split, data.test))]


def both_parts(where: str, data: SiteData) -> tuple[Split, Split]:
    """Return the two parts of rows that are divided among clients; refuse an empty one."""
    for name, part in _parts_of(data):
        if not len(part):
            raise DataError(f"{where}, {name} part: no rows: give at least one")
    (_, train), (_, test) = _parts_of(data)
    return train, test


def _check_names(where: str, kind: str, data: SiteData, names: object) -> None:
    """Refuse ids or owners that do not name each row of the two parts."""
    if not isinstance(names, tuple | list) or len(names) != 2:
        raise DataError(
            f"{where}: {kind} are a {type(names).__name__}: give two NumPy arrays, of the "
            "training rows and of the test rows"
        )
    for (name, part), of_part in zip(_parts_of(data), names, strict=True):
        array = isinstance(of_part, np.ndarray)
        if not array or of_part.ndim != 1 or of_part.dtype.kind not in "iuUS":
            dtype = f"{of_part.dtype} array" if array else type(of_part).__name__
            raise DataError(
                f"{where}, {name} part: {kind} are a {dtype}: give one whole number or "
                "text per row, as a NumPy array"
            )
        if len(of_part) != len(part):
            raise DataError(
                f"{where}, {name} part: {len(of_part)} {kind} and {len(part)} rows: "
                "expected as many"
            )


def _check_form(where: str, part: object) -> None:
    if not isinstance(part, Split):
        what = "there is none" if part is None else f"it is a {type(part).__name__}"
        raise DataError(
            f"{where}: {what}: give a Split of inputs and labels, with at least one row"
        )
    features, labels = part.features, part.labels
    for kind, tensor in (("features", features), ("labels", labels)):
        if not isinstance(tensor, torch.Tensor):
            raise DataError(f"{where}: {kind} are no torch tensor: return one")
        plain = tensor.layout == torch.strided and tensor.is_cpu
        if not plain or tensor.requires_grad:
            raise DataError(
                f"{where}: {kind} lie elsewhere, are sparse or want a gradient: return a "
                "plain tensor on the CPU"
            )
    if labels.ndim < 1:
        raise DataError(f"{where}: labels are one number: give one per row")
    if features.ndim < 2:
        raise DataError(
            f"{where}: inputs are of shape {tuple(features.shape)}: expected rows of at "
            "least one number"
        )
    if features.dtype not in (*_RAW_TYPES, _WORDS):
        raise DataError(
            f"{where}: inputs are {features.dtype}: expected {_RAW_TYPES[0]}, or "
            f"{_RAW_TYPES[1]} of images, or {_WORDS} of words"
        )
    if len(features) != len(labels):
        raise DataError(
            f"{where}: {len(features)} inputs and {len(labels)} labels: expected as many"
        )


def _check_part(where: str, spec: DatasetSpec, part: Split) -> None:
    features = part.features
    if tuple(features.shape[1:]) != spec.input_shape:
        raise DataError(
            f"{where}: inputs of shape {tuple(features.shape[1:])}: data set {spec.name} "
            f"has {spec.input_shape}; name other columns or another data set"
        )
    kind = _WORDS if spec.words else _RAW_TYPES[0]
    if features.dtype != kind and not (spec.is_image and features.dtype in _RAW_TYPES):
        raise DataError(f"{where}: inputs are {features.dtype}: expected {kind}")
    if spec.words and (features < 0).any():
        raise DataError(f"{where}: a word's number is below 0: number them from 0")
    if not len(part):
        return
    _check_labels(where, spec, part.labels)
    fills = spec.schema is not None and spec.schema.missing != "refuse"
    if torch.isinf(features).any() or (torch.isnan(features).any() and not fills):
        raise DataError(
            f"{where}: inputs hold NaN or infinity: fill missing values or drop their rows"
        )
    if spec.is_image:
        _check_pixels(where, spec, features)


def _check_labels(where: str, spec: DatasetSpec, labels: torch.Tensor) -> None:
    """Refuse labels that are none of the data set's task, usually classes."""
    task = spec.labels
    axes, kind, what = _LABELS[task.labels]
    if labels.ndim != axes or labels.dtype != kind:
        raise DataError(
            f"{where}: labels are {labels.dtype} of shape {tuple(labels.shape)}: expected "
            f"{what} per row, for task {task.name}"
        )
    if not torch.isfinite(labels).all():
        raise DataError(f"{where}: labels hold NaN or infinity: drop their rows")
    if task.labels == "time and event" and labels.shape[1] != _TIME_AND_EVENT:
        raise DataError(f"{where}: {labels.shape[1]} labels per row: give time and event")
    flags = {"labels": labels, "time and event": labels[..., -1]}.get(task.labels)
    if flags is not None and not ((flags == 0) | (flags == 1)).all():
        raise DataError(f"{where}: a label is neither 0 nor 1: give one of the two")
    if task.has_classes and ((labels < 0) | (labels >= spec.num_classes)).any():
        raise DataError(
            f"{where}: a label is outside 0 to {spec.num_classes - 1}: data set "
            f"{spec.name} has {spec.num_classes} classes, numbered from 0"
        )


def _check_pixels(where: str, spec: DatasetSpec, features: torch.Tensor) -> None:
    least, largest = float(features.min()), float(features.max())
    if least < 0 or largest > spec.max_value:
        raise DataError(
            f"{where}: inputs lie in {least:g} to {largest:g}: expected raw values of 0 to "
            f"{spec.max_value}, which are scaled here"
        )
    if features.dtype == torch.float32 and 0 < largest <= 1:
        raise DataError(
            f"{where}: inputs go to {largest:g} only and look scaled: give raw values of 0 "
            f"to {spec.max_value}, which are scaled here"
        )


def _scaled(
    part: Split, spec: DatasetSpec, scaling: str, columns: ColumnScaling | None
) -> Split:
    features = scale_inputs(part.features.numpy(), spec, scaling, columns)
    return replace(part, features=features, labels=part.labels.clone())


def _load_adapter(site: Site) -> Adapter:
    if not site.adapter:
        return read_site
    try:
        if not is_code(site.adapter):
            raise ConfigError("expected module:function")
        return cast(Adapter, import_code(site.adapter))
    except ConfigError as error:
        raise ConfigError(
            f"site {site.name}: node-config data-adapter = {site.adapter!r}: {error}"
        ) from error
