"""What travels in place of the files of an experiment on a table of one's own."""

from collections.abc import Mapping
from pathlib import Path

from fedsuite.core.errors import ConfigError, DataError, Refused
from fedsuite.core.keys import Value
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.loading import data_folder
from fedsuite.data.own_table import NAME, OwnTable
from fedsuite.data.schema import TableSchema
from fedsuite.data.site import Site
from fedsuite.data.site_parquet import read_files


def at_home(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return what an experiment's values become where its files are read.

    The file of the key ``schema`` becomes its content, which travels in its place, and the
    key ``client-column`` the division that it means.

    Raises
    ------
    ConfigError
        If the file is no schema, or a key divides the table otherwise.
    """
    changed: dict[str, Value] = {}
    text = str(values["schema"])
    if text and not text.lstrip().startswith("{"):
        changed["schema"] = TableSchema.load(Path(text).expanduser()).to_json()
    if not values["client-column"]:
        return changed
    if values["sites"]:
        raise Refused(
            {"client-column": values["client-column"], "sites": values["sites"]},
            "each site is one client",
            "leave {client-column} out",
            idle=True,
        )
    if values["partitioner"] not in ("iid", "natural-id"):
        raise Refused(
            {k: values[k] for k in ("client-column", "partitioner")},
            "the column divides the table",
            "leave one of them out",
            idle=True,
        )
    if values["partitioner"] == "iid":
        names = _owner_names({**values, **changed})
        if values["num-clients"] not in (len(names), 10):
            raise ConfigError(
                f"key num-clients = {values['num-clients']}: the column "
                f"{values['client-column']!r} has {len(names)} names: leave the key out, "
                "or deal several names to a client with partitioner = 'natural-id'"
            )
        changed |= {"partitioner": "natural-id", "natural-ids": "each"}
        changed["num-clients"] = len(names)
    return changed


def _owner_names(values: Mapping[str, Value]) -> list[str]:
    """Return the names in the column that divides a table."""
    source = OwnTable.of(values)
    spec = source.shaped(DataSettings.of(values).spec)
    folder = data_folder(str(values["data-dir"]))
    if folder is None:
        source.load(spec, None)
    assert folder is not None
    site = Site(NAME, folder, owner_column=source.client_column)
    owners = read_files(site, spec)[0].get("owners")
    if owners is None:
        raise DataError(
            f"key client-column = {source.client_column!r}: {folder} has no such column"
        )
    return sorted(set(owners.tolist()))
