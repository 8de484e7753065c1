"""A site's own data: what its node's configuration names, read, checked and scaled there.

The operator of a node names the data in the node's configuration, for example::

    flower-supernode --node-config 'data="/srv/hospital-a" label-column="died"' ...

Nothing that arrives over the wire chooses a file, a column or an adapter, and nothing of
the rows leaves the node but what the method's records hold.

An *adapter* turns what ``data`` names into a :class:`SiteData`, unscaled. The default one
reads Parquet (:mod:`fedsuite.data.site_parquet`); an operator may name another as
``data-adapter = "module:function"``, a function called as
``function(site, spec, test_fraction)``. Whatever an adapter returns is checked here, and
scaled here, as the experiment says, so that all sites' inputs are alike.
"""

import difflib
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeAlias

import torch

from fedsuite.core.errors import ConfigError, DataError, FedsuiteError
from fedsuite.core.keys import Value
from fedsuite.data.federated import ClientData, Split, scale_inputs
from fedsuite.data.specs import DatasetSpec, IntArray

_ADAPTER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_RAW_TYPES = (torch.float32, torch.uint8)


@dataclass(frozen=True)
class Site:
    """What a node's operator says of the site's data.

    Parameters
    ----------
    name
        For messages.
    data
        Folder or Parquet file.
    adapter
        ``module:function`` that reads it; empty is the default adapter.
    image_column, label_column, id_column
        Columns of the default adapter; empty is the data set's own. Rows with one id (a
        patient) are never in both the training and the test part.
    feature_columns
        Columns of numbers, in the order that all sites agree on.
    """

    name: str
    data: Path
    adapter: str = ""
    image_column: str = ""
    label_column: str = ""
    id_column: str = ""
    feature_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteData:
    """What an adapter returns: a site's rows, their inputs in the data set's raw units.

    Parameters
    ----------
    train, test
        Inputs (float32; uint8 for images), ``[rows, *input_shape]``, and classes (int64).
    ids
        What each training row and each test row is about, such as a patient's number;
        checked to have nothing in common, and not used otherwise.
    """

    train: Split
    test: Split
    ids: tuple[IntArray, IntArray] | None = None


Adapter: TypeAlias = Callable[[Site, DatasetSpec, float], SiteData]
"""Reads a site's data; the number is the share of rows to hold out for tests."""

_KEYS = {
    "data": "data",
    "data-adapter": "adapter",
    "image-column": "image_column",
    "label-column": "label_column",
    "id-column": "id_column",
    "feature-columns": "feature_columns",
    "site": "name",
}
"""Keys of a node's configuration, and the fields of :class:`Site` that they set."""


def site_from_config(config: Mapping[str, Value]) -> Site:
    """Read what a node's configuration says of its data; keys of others are passed over.

    Raises
    ------
    ConfigError
        If ``data`` is missing, a value is no text, or a key is nearly one of these.
    """
    given: dict[str, str] = {}
    for key, value in config.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(key.replace("_", "-"), _KEYS, 1, cutoff=0.8)
            if near:
                raise ConfigError(f"node-config {key}: did you mean {near[0]!r}?")
            continue
        if not isinstance(value, str) or not value:
            raise ConfigError(f'node-config {key} = {value!r}: expected {key}="..."')
        given[_KEYS[key]] = value
    if "data" not in given:
        raise ConfigError(
            "the experiment has sites with data of their own, and this node names none: "
            "start it with --node-config 'data=\"/path/to/folder\"'"
        )
    data = Path(given.pop("data")).expanduser()
    if not data.is_absolute():
        raise ConfigError(f"node-config data = {str(data)!r}: expected an absolute path")
    columns = given.pop("feature_columns", "")
    given.setdefault("name", data.name)
    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    if len(set(names)) != len(names):
        raise ConfigError("node-config feature-columns names a column twice")
    return Site(data=data, feature_columns=names, **given)


def load_site_data(
    site: Site, spec: DatasetSpec, scaling: str, test_fraction: float
) -> ClientData:
    """Read a site's data, check it, and scale it as the experiment says.

    Raises
    ------
    FedsuiteError
        In one line with site, file or part, column, and what to do.
    """
    adapter = _load_adapter(site)
    try:
        data = adapter(site, spec, test_fraction)
    except FedsuiteError as error:
        raise DataError(f"site {site.name}: {error}") from error
    except Exception as error:
        # An adapter is somebody else's code: it may raise whatever it likes.
        raise DataError(
            f"site {site.name}: adapter {site.adapter or 'parquet'} failed on {site.data} "
            f"({type(error).__name__}: {' '.join(str(error).split())}): mend it or the data"
        ) from error
    check_site_data(site, spec, data)
    return ClientData(*(_scaled(part, spec, scaling) for part in (data.train, data.test)))


def check_site_data(site: Site, spec: DatasetSpec, data: object) -> None:
    """Refuse what no client could train on; :class:`DataError` says what and where."""
    where = f"site {site.name}: {site.data}"
    if not isinstance(data, SiteData):
        raise DataError(
            f"{where}: the adapter returned a {type(data).__name__}: return a SiteData"
        )
    for name, part in (("training", data.train), ("test", data.test)):
        _check_part(f"{where}, {name} part", spec, part)
    if data.ids is not None:
        common = set(data.ids[0].tolist()) & set(data.ids[1].tolist())
        if common:
            raise DataError(
                f"{where}: {len(common)} ids are in both the training and the test part: "
                "move all rows of an id to one of them"
            )


def _check_part(where: str, spec: DatasetSpec, part: Split) -> None:
    features, labels = part.features, part.labels
    kinds = {item.name: getattr(part, item.name) for item in fields(part)[:2]}
    for kind, tensor in kinds.items():
        if not isinstance(tensor, torch.Tensor):
            raise DataError(f"{where}: {kind} are no torch tensor: return one")
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise DataError(
            f"{where}: labels are {labels.dtype} of shape {tuple(labels.shape)}: expected "
            "one int64 class a row"
        )
    if len(features) != len(labels):
        raise DataError(
            f"{where}: {len(features)} inputs and {len(labels)} labels: expected as many"
        )
    if not len(labels):
        raise DataError(f"{where}: no rows: give at least one")
    if tuple(features.shape[1:]) != spec.input_shape:
        raise DataError(
            f"{where}: inputs of shape {tuple(features.shape[1:])}: data set {spec.name} "
            f"has {spec.input_shape}; name other columns or another data set"
        )
    allowed = _RAW_TYPES if spec.is_image else _RAW_TYPES[:1]
    if features.dtype not in allowed:
        names = " or ".join(str(kind) for kind in allowed)
        raise DataError(f"{where}: inputs are {features.dtype}: expected {names}")
    if not bool(torch.isfinite(features).all()):
        raise DataError(
            f"{where}: inputs hold NaN or infinity: fill missing values or drop their rows"
        )
    if bool((labels < 0).any()) or bool((labels >= spec.num_classes).any()):
        raise DataError(
            f"{where}: a label is outside 0 to {spec.num_classes - 1}: data set "
            f"{spec.name} has {spec.num_classes} classes, numbered from 0"
        )
    if spec.is_image:
        _check_pixels(where, spec, features)


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


def _scaled(part: Split, spec: DatasetSpec, scaling: str) -> Split:
    features = scale_inputs(part.features.numpy(), spec, scaling)
    return replace(part, features=features, labels=part.labels.clone())


def _load_adapter(site: Site) -> Adapter:
    if not site.adapter:
        from fedsuite.data.site_parquet import read_site

        return read_site
    if not _ADAPTER.fullmatch(site.adapter):
        raise ConfigError(
            f"site {site.name}: node-config data-adapter = {site.adapter!r}: expected "
            "module:function"
        )
    module, _, name = site.adapter.partition(":")
    try:
        adapter: Adapter = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"site {site.name}: node-config data-adapter = {site.adapter!r}: {error}; "
            "install the module where the node's programs run"
        ) from error
    return adapter
