"""Keys of an experiment's data, whatever the partitioner."""

import re
from collections.abc import Mapping

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Key, Value
from fedsuite.data.catalog import DATASETS
from fedsuite.data.partition_specs import PARTITIONERS

_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

KEYS = (
    Key("dataset", "digits", "data set; see fedsuite datasets", choices=tuple(DATASETS)),
    Key(
        "data-dir",
        AUTO,
        "folder with one sub-folder of Parquet files per data set; auto is the environment "
        "variable FEDSUITE_DATA, else the hub",
        kind=str,
    ),
    Key("num-clients", 10, "clients that the data is divided among", minimum=1),
    Key("partitioner", "iid", "how the data is divided", choices=tuple(PARTITIONERS)),
    Key(
        "sites",
        "",
        "names of the registered SuperNodes that bring data of their own, comma-separated, "
        "one client each; empty divides the data set, which else gives shape and scaling",
    ),
    Key(
        "site-dirs",
        "",
        "rehearses sites in the local engine: folder with a sub-folder of data for each",
    ),
    Key(
        "test-fraction",
        0.2,
        "part of the rows held out for tests, in data sets without a published test part",
        above=0,
        maximum=0.9,
    ),
    Key(
        "client-test-fraction",
        0.0,
        "share of the training part split off for the clients' own tests, the test part "
        "then being a global test set alone; 0 tests clients on rows of the test part",
        minimum=0.0,
        maximum=0.9,
    ),
    Key(
        "server-validation-fraction",
        0.0,
        "share of the training part that the server keeps to validate on; 0 is none",
        minimum=0.0,
        maximum=0.9,
    ),
    Key(
        "public-size",
        0,
        "rows of the training part that no client gets: public data, without labels, for "
        "methods that need some; 0 is none",
        minimum=0,
    ),
    Key(
        "public-used",
        0,
        "use only the first so many rows of the public data, to compare sizes on the same "
        "private rows; 0 is all",
        minimum=0,
    ),
    Key(
        "public-dir",
        "",
        "folder with Parquet files of public images of your own, without labels, of which "
        "public-size takes the first rows (0 is all); auto is the environment variable "
        "FEDSUITE_PUBLIC of each machine; empty holds out rows instead",
    ),
    Key(
        "scaling",
        "standard",
        "unit maps inputs to 0..1; standard then takes off the mean of each channel and "
        "divides by its standard deviation (digits: 0..1 in both)",
        choices=("standard", "unit"),
    ),
    Key(
        "label-noise",
        0.0,
        "share of each client's training rows whose label is flipped to a random other "
        "class; 0 is none, 1 leaves no label right",
        minimum=0.0,
        maximum=1.0,
    ),
)
"""Keys that every experiment has; those of one partitioner stand in its PartitionerSpec."""


def site_names(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the sites of an experiment; client k is the k-th.

    Raises
    ------
    ConfigError
        If a name cannot be one, or stands there twice.
    """
    text = str(values["sites"])
    if not text:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not _SITE_NAME.fullmatch(name):
            raise ConfigError(
                f"key sites: name {name!r}: expected letters, digits, dots, dashes and "
                "underscores, 63 at most, as the SuperNode was registered"
            )
        if names.count(name) > 1:
            raise ConfigError(f"key sites names {name!r} twice")
    return names
