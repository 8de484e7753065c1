"""Data sets, their division among clients, and the keys that choose them.

Importing this module costs little. torch, pyarrow, Pillow, scikit-learn and the hub's
libraries are imported when data is loaded.
"""

from fedsuite.data.catalog import DATASETS, PARTITIONERS
from fedsuite.data.covariate_shift import CovariateShift
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.division import Division, Partition, Samples
from fedsuite.data.federated import (
    ClientData,
    FederatedData,
    Split,
)
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
    "Iid",
    "NaturalId",
    "Partition",
    "Pathological",
    "PowerLaw",
    "PublicData",
    "RawData",
    "Samples",
    "Shards",
    "Source",
    "Split",
    "load_federated_data",
]
