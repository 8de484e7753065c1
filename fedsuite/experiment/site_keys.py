"""Checks of the keys about sites that bring data of their own."""

from collections.abc import Mapping

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Value
from fedsuite.core.registry import METHODS
from fedsuite.data.catalog import DATASETS
from fedsuite.data.data_settings import DataSettings
from fedsuite.strategies import load_strategy

_NUM_CLIENTS_DEFAULT = 10

_ROWS_ON_SERVER: Mapping[str, tuple[Value, str]] = {
    "partitioner": ("iid", "each site is a client with the rows that it has"),
    "client-test-fraction": (0.0, "test-fraction is what a site holds out"),
    "server-validation-fraction": (0.0, "the server has no rows to keep"),
    "fresh-test-split": (False, "a site's test rows are the same for all seeds"),
    "label-noise": (0.0, "the labels of a site are its own"),
    "score-whole-test": (False, "there is no test part that all sites hold"),
}
"""Needed values, with the reason, of keys that need the whole data set in one place."""


def site_names(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the names of an experiment's sites; none where clients divide a data set."""
    return DataSettings.of(values).site_names


def number_of_sites(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the key num-clients of sites; refuse another number."""
    names = site_names(values)
    if not names:
        return {}
    given = values["num-clients"]
    if given not in (len(names), _NUM_CLIENTS_DEFAULT):
        raise ConfigError(
            f"key num-clients = {given}: sites names {len(names)}, one client each; leave "
            "num-clients out"
        )
    return {"num-clients": len(names)}


def check_sites(values: Mapping[str, Value]) -> None:
    """Refuse an experiment with sites that needs all rows in one process."""
    data = DataSettings.of(values)
    rehearsal = bool(data.site_dirs)
    if not data.site_names:
        if rehearsal:
            raise ConfigError('key site-dirs: name the sites too, with sites = "A, B"')
        return
    for key, (needed, reason) in _ROWS_ON_SERVER.items():
        if values[key] != needed:
            raise ConfigError(
                f"key {key} = {values[key]!r} cannot go with sites: {reason}; set "
                f"{needed!r}"
            )
    method = str(values["method"])
    if load_strategy(METHODS[method]).takes("validation"):
        raise ConfigError(
            f"method {method} validates on rows of the server, which has none where sites "
            "bring their own: choose another method, or leave sites empty"
        )
    if data.dataset == "reddit":
        raise ConfigError(
            "key dataset = 'reddit' cannot go with sites: its rows have no class"
        )
    if DATASETS[data.dataset].reader:
        raise ConfigError(
            f"key dataset = {data.dataset!r} cannot go with sites: its rows alone say its "
            "shape, and sites bring rows of their own; set own-table, or a DatasetSpec"
        )
    if data.public_size and not data.public_dir:
        raise ConfigError(
            f"key public-size = {data.public_size}: with sites no rows can be held "
            "out; give public-dir = 'auto', and FEDSUITE_PUBLIC at server and sites"
        )
    if values["engine"] == "ray" or (values["engine"] == "deployment" and rehearsal):
        raise ConfigError(
            f"key engine = {values['engine']!r}: sites are SuperNodes of their own; "
            "rehearse with site-dirs and engine = 'local'"
        )
    if rehearsal:
        return
    if values["attack"] != "none":
        raise ConfigError(
            f"key attack = {values['attack']!r} cannot go with sites, whose clients are "
            "not ours to make lie: rehearse with site-dirs, or set 'none'"
        )
    # A node's operator chooses the folders that the node opens.
    for key, allowed in (("public-dir", ("", AUTO)), ("state-dir", (AUTO,))):
        if values[key] not in allowed:
            raise ConfigError(
                f"key {key} = {values[key]!r} cannot go with sites, whose operators choose "
                f"their folders: set {allowed[-1]!r}, and FEDSUITE_"
                f"{key.partition('-')[0].upper()} at each node"
            )
