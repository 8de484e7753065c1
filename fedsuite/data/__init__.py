"""Data sets, their division among clients, and the keys that choose them.

Importing this module costs little. torch, pyarrow, Pillow, scikit-learn and the hub's
libraries are imported when data is loaded. flwr-datasets is imported with a partitioner of
:mod:`fedsuite.data.partitioners`.
"""

from importlib import import_module
from typing import Any

from fedsuite.data.catalog import DATASETS
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.federated import (
    ClientData,
    FederatedData,
    Split,
)
from fedsuite.data.holdings import PartitionRow, partition_table
from fedsuite.data.loading import load_federated_data
from fedsuite.data.partition import Partition, Samples
from fedsuite.data.partition_specs import PARTITIONERS, PartitionerSpec, partition_indices
from fedsuite.data.public import PublicData
from fedsuite.data.shift_report import ClientShift
from fedsuite.data.specs import DatasetSpec, RawData

__all__ = [
    "DATASETS",
    "PARTITIONERS",
    "ClientData",
    "ClientShift",
    "DataSettings",
    "DatasetSpec",
    "FederatedData",
    "Partition",
    "PartitionRow",
    "PartitionerSpec",
    "PublicData",
    "RawData",
    "Samples",
    "Split",
    "load_federated_data",
    "partition_indices",
    "partition_table",
]

_FLOWER_PARTITIONERS = (
    "ClassCountPartitioner",
    "ClientDirichletPartitioner",
    "CovariateShiftPartitioner",
    "DirichletPartitioner",
    "FirstComponentPartitioner",
    "IidPartitioner",
    "NaturalIdPartitioner",
    "PathologicalPartitioner",
    "PowerLawPartitioner",
    "PrintedShiftPartitioner",
    "SameMixPartitioner",
    "ShardPartitioner",
)


def __getattr__(name: str) -> Any:
    """Import a flwr-datasets partitioner when it is first used (PEP 562)."""
    if name not in _FLOWER_PARTITIONERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fedsuite.data.partitioners"), name)


def __dir__() -> list[str]:
    """List everything that can be imported from here."""
    return sorted((*__all__, *_FLOWER_PARTITIONERS))
