"""Data sets, their division among clients, and the keys that choose them.

Importing this module costs little: torch, pyarrow, Pillow, scikit-learn and the hub's
libraries are imported when data is loaded.
"""

from fedsuite.data.catalog import DATASETS
from fedsuite.data.experiment_keys import KEYS
from fedsuite.data.federated import (
    ClientData,
    FederatedData,
    PartitionRow,
    Split,
    load_federated_data,
    partition_table,
)
from fedsuite.data.partition import Partition, Samples
from fedsuite.data.partition_specs import PARTITIONERS, PartitionerSpec, partition_indices
from fedsuite.data.specs import DatasetSpec, RawData

__all__ = [
    "DATASETS",
    "KEYS",
    "PARTITIONERS",
    "ClientData",
    "DatasetSpec",
    "FederatedData",
    "Partition",
    "PartitionRow",
    "PartitionerSpec",
    "RawData",
    "Samples",
    "Split",
    "load_federated_data",
    "partition_indices",
    "partition_table",
]
