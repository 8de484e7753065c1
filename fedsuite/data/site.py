"""A site's own data, as its node's configuration names it and an adapter returns it.

The operator of a node names the data in the node's configuration, for example::

    flower-supernode --node-config 'data="/srv/hospital-a" label-column="died"' ...

No message chooses a file, a column or an adapter. Nothing of the rows leaves the node but
the method's records.

An *adapter* reads the file or folder ``data`` into an unscaled :class:`SiteData`. The
default adapter reads Parquet (:mod:`fedsuite.data.site_parquet`). An operator may name
another adapter as ``data-adapter = "module:function"``, called as ``function(site, spec,
test_fraction)``. The node checks and scales an adapter's data
(:mod:`fedsuite.data.site_loading`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fedsuite.core.column_scaling import LEAST_ROWS
from fedsuite.core.errors import ConfigError, nearest
from fedsuite.core.keys import Value
from fedsuite.core.text import escape_taken
from fedsuite.data.federated import Split
from fedsuite.data.schema import TableSchema
from fedsuite.data.specs import DatasetSpec, IntArray


@dataclass(frozen=True)
class Site:
    """A node's configuration of the site's data.

    Parameters
    ----------
    name
        Name of the site, for messages.
    data
        Folder or Parquet file.
    adapter
        ``module:function`` that reads the data; empty is the default adapter.
    image_column, label_column, id_column
        Columns of the default adapter; empty is the data set's own. Rows with one id (a
        patient) are never in both the training and the test part.
    feature_columns
        Columns of numbers, in the order that all sites agree on; with a schema, this site's
        names of its columns, in its order.
    schema
        The table's schema, as the site's operator has it; None without one.
    owner_column
        Column of a row's natural owner, for tables that are divided here.
    least_rows
        Rows below which nothing is told of them but what training tells.
    evaluation_only
        Whether the site trains nothing: it scores the models that it gets.
    """

    name: str
    data: Path
    adapter: str = ""
    image_column: str = ""
    label_column: str = ""
    id_column: str = ""
    feature_columns: tuple[str, ...] = ()
    schema: TableSchema | None = None
    owner_column: str = ""
    least_rows: int = LEAST_ROWS
    evaluation_only: bool = False


@dataclass(frozen=True)
class SiteData:
    """A site's rows from an adapter, with inputs in the data set's raw units.

    Parameters
    ----------
    train, test
        Inputs (float32; uint8 for images; int64 for numbers of words), ``[rows,
        *input_shape]``, and classes (int64). A site may have no rows of one of them, or
        None: without training rows it only evaluates, without test rows it has no scores.
    ids
        Subject of each training row and each test row, such as a patient's number, as two
        NumPy arrays. The two parts must share no subject. The ids have no other use.
    columns
        Names of the inputs of a table, in their order, where an adapter knows them: sites
        of other names are then refused. See :mod:`fedsuite.data.columns`.
    owners
        Natural owner of each training row and each test row, such as a hospital, as two
        NumPy arrays: what ``partitioner = "natural-id"`` divides by. Refused of a site,
        which is one owner.
    """

    train: Split | None
    test: Split | None
    ids: tuple[IntArray, IntArray] | None = None
    columns: tuple[str, ...] = ()
    owners: tuple[IntArray, IntArray] | None = None


Adapter: TypeAlias = Callable[[Site, DatasetSpec, float], SiteData]
"""Function that reads a site's data; its last argument is the test fraction."""

_KEYS = {
    "data": "data",
    "data-adapter": "adapter",
    "image-column": "image_column",
    "label-column": "label_column",
    "id-column": "id_column",
    "feature-columns": "feature_columns",
    "site": "name",
    "schema": "schema",
    "least-rows": "least_rows",
    "evaluation-only": "evaluation_only",
}
"""Fields of :class:`Site` by the key of a node's configuration."""


def site_from_config(config: Mapping[str, Value]) -> Site:
    """Return the site of a node's configuration; other programs' keys are passed over."""
    settings: dict[str, str] = {}
    least_rows, evaluation_only = LEAST_ROWS, False
    for key, value in config.items():
        if key not in _KEYS:
            if near := nearest(key.replace("_", "-"), _KEYS, cutoff=0.8):
                raise ConfigError(f"node-config {key}: did you mean {near!r}?")
            continue
        if key == "least-rows":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"node-config {key} = {value!r}: expected 1 or more")
            least_rows = value
            continue
        if key == "evaluation-only":
            if not isinstance(value, bool):
                raise ConfigError(f"node-config {key} = {value!r}: expected true or false")
            evaluation_only = value
            continue
        if not isinstance(value, str) or not value:
            raise ConfigError(f'node-config {key} = {value!r}: expected {key}="..."')
        if words := escape_taken(value):
            raise ConfigError(f"node-config {key} = {value!r}: {words}")
        settings[_KEYS[key]] = value
    if "data" not in settings:
        raise ConfigError(
            "the experiment has sites with data of their own, and this node names none: "
            'write data = "/path/to/folder" below [node-config] of its node.toml, or '
            "start Flower's SuperNode with --node-config 'data=\"/path/to/folder\"'"
        )
    data = Path(settings.pop("data")).expanduser()
    if not data.is_absolute():
        raise ConfigError(f"node-config data = {str(data)!r}: expected an absolute path")
    columns = settings.pop("feature_columns", "")
    schema = settings.pop("schema", "")
    if schema and not Path(schema).expanduser().is_absolute():
        raise ConfigError(f"node-config schema = {schema!r}: expected an absolute path")
    settings.setdefault("name", data.name)
    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    if len(set(names)) != len(names):
        raise ConfigError("node-config feature-columns names a column twice")
    return Site(
        data=data,
        feature_columns=names,
        schema=TableSchema.load(Path(schema).expanduser()) if schema else None,
        least_rows=least_rows,
        evaluation_only=evaluation_only,
        **settings,
    )
