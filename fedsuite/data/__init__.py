"""Data sets, their division among clients, and the keys that choose them.

Importing this module costs little. torch, pyarrow, Pillow, scikit-learn and the hub's
libraries are imported when data is loaded. flwr-datasets is imported with a partitioner of
:mod:`fedsuite.data.partitioners`.
"""

from importlib import import_module
from typing import Any

from fedsuite.core.extras import naming_extras
from fedsuite.data.catalog import DATASETS, PARTITIONERS
from fedsuite.data.covariate_shift import CovariateShift, FirstComponent, PrintedShift
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.division import Division, Partition, Samples
from fedsuite.data.federated import (
    ClientData,
    FederatedData,
    Split,
)
from fedsuite.data.holdings import PartitionRow, partition_table
from fedsuite.data.loading import load_federated_data
from fedsuite.data.partition import (
    ClassCount,
    Dirichlet,
    DirichletClient,
    Iid,
    NaturalId,
    Pathological,
    PowerLaw,
    Shards,
)
from fedsuite.data.public import PublicData
from fedsuite.data.shift_report import ClientShift
from fedsuite.data.specs import DatasetSpec, RawData, Source

__all__ = [
    "DATASETS",
    "PARTITIONERS",
    "ClassCount",
    "ClientData",
    "ClientShift",
    "CovariateShift",
    "DataSettings",
    "DatasetSpec",
    "Dirichlet",
    "DirichletClient",
    "Division",
    "FederatedData",
    "FirstComponent",
    "Iid",
    "NaturalId",
    "Partition",
    "PartitionRow",
    "Pathological",
    "PowerLaw",
    "PrintedShift",
    "PublicData",
    "RawData",
    "Samples",
    "Shards",
    "Source",
    "Split",
    "load_federated_data",
    "partition_table",
]

_FLOWER_PARTITIONERS = ("SameMixPartitioner", "SuitePartitioner")


def __getattr__(name: str) -> Any:
    """Import a flwr-datasets partitioner when it is first used (PEP 562)."""
    if name not in _FLOWER_PARTITIONERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_extras(name):
        return getattr(import_module("fedsuite.data.partitioners"), name)


def __dir__() -> list[str]:
    """List everything that can be imported from here."""
    return sorted((*__all__, *_FLOWER_PARTITIONERS))
