"""A site's own data: what its node's configuration names, and what an adapter returns.

The operator of a node names the data in the node's configuration, for example::

    flower-supernode --node-config 'data="/srv/hospital-a" label-column="died"' ...

Nothing that arrives over the wire chooses a file, a column or an adapter, and nothing of
the rows leaves the node but what the method's records hold.

An *adapter* turns what ``data`` names into a :class:`SiteData`, unscaled. The default one
reads Parquet (:mod:`fedsuite.data.site_parquet`); an operator may name another as
``data-adapter = "module:function"``, a function called as
``function(site, spec, test_fraction)``. Whatever an adapter returns is checked and scaled
on the node (:mod:`fedsuite.data.site_loading`).
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.data.federated import Split
from fedsuite.data.specs import DatasetSpec, IntArray


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
