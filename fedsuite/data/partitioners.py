"""fedsuite's partitioners as classes of flwr-datasets, for any Flower app.

A named class divides the training split. :class:`SameMixPartitioner` divides the test split
in the same mix::

    train = ShardPartitioner(num_partitions=100, shards_per_client=2)
    data = FederatedDataset(
        dataset="ylecun/mnist",
        partitioners={"train": train, "test": SameMixPartitioner(train)},
    )
    data.load_partition(0, "train")
    data.load_partition(0, "test")
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr_datasets.partitioner import Partitioner

from fedsuite.core.errors import DataError
from fedsuite.core.keys import Value
from fedsuite.data.partition import Partition
from fedsuite.data.partition_specs import partition_indices, partition_training_part
from fedsuite.data.shift_report import ClientShift
from fedsuite.data.specs import IntArray

if TYPE_CHECKING:
    from datasets import Dataset


class SuitePartitioner(Partitioner):  # type: ignore[misc]
    """A partitioner of :data:`fedsuite.data.PARTITIONERS` on a ``datasets.Dataset``.

    Parameters
    ----------
    name
        Name of the partitioner.
    num_partitions
        Number of clients.
    partition_by
        Column of integer labels; for ``natural-id`` the column of owners.
    seed
        Seed of the draws.
    options
        Values of the partitioner's own keys, by kebab-case name.
    features
        Columns of inputs (images or numbers), for partitioners that look at inputs.
    """

    def __init__(
        self,
        name: str,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        options: dict[str, Value] | None = None,
        features: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.name = name
        self.features = (features,) if isinstance(features, str) else tuple(features)
        self.partition_by = partition_by
        self.seed = seed
        self.options = options or {}
        self._num_partitions = num_partitions

    @property
    def num_partitions(self) -> int:
        """Number of clients."""
        return self._num_partitions

    @property
    def indices(self) -> tuple[IntArray, ...]:
        """Rows of each client in the dataset, ascending."""
        return self._partition.train

    @property
    def shifts(self) -> tuple[ClientShift, ...]:
        """Measured covariate shift of each client; empty without such a shift."""
        return self._partition.shifts

    @cached_property
    def _partition(self) -> Partition:
        labels, ids = self._labels_and_ids(self.column(self.dataset))
        return partition_training_part(
            self.name,
            labels,
            self.num_partitions,
            self.options,
            self.seed,
            ids,
            self._features(self.dataset),
        )

    def test_indices(self, test: "Dataset") -> tuple[IntArray, ...]:
        """Return the rows of each client in a test split, mixed as in the training split.

        Raises
        ------
        DataError
            If the test split changes who gets which training rows, because an owner occurs
            in only one of the two.
        """
        column = self.column(self.dataset)
        labels, ids = self._labels_and_ids(np.concatenate([column, self.column(test)]))
        train, rest = np.split(labels, [len(column)])
        inputs, test_inputs = self._features(self.dataset), self._features(test)
        parts = partition_indices(
            self.name,
            train,
            rest,
            self.num_partitions,
            self.options,
            self.seed,
            (ids[: len(column)], ids[len(column) :]) if ids is not None else None,
            None if inputs is None or test_inputs is None else (inputs, test_inputs),
        )
        if not all(map(np.array_equal, parts.train, self.indices)):
            raise DataError(
                f"partitioner {self.name}: column {self.partition_by!r} of the test split "
                "holds other owners than that of the training split"
            )
        return parts.test

    def load_partition(self, partition_id: int) -> "Dataset":
        """Return the rows of client ``partition_id``, 0 to ``num_partitions - 1``."""
        return self.dataset.select(self.indices[partition_id])

    def column(self, dataset: "Dataset") -> npt.NDArray[np.generic]:
        """Return the values of the column that the partition goes by."""
        return self._read(dataset, self.partition_by)

    def _features(self, dataset: "Dataset") -> npt.NDArray[Any] | None:
        """Return the inputs as rows of numbers; None without the option ``features``."""
        if not self.features:
            return None
        columns = []
        for name in self.features:
            values = self._read(dataset, name)
            if values.dtype.kind not in "biuf":
                raise DataError(
                    f"partitioner {self.name}: column {name!r} holds no numbers of one "
                    "shape for all rows"
                )
            columns.append(values.reshape(len(values), -1))
        return np.concatenate(columns, axis=1)

    def _read(self, dataset: "Dataset", name: str) -> npt.NDArray[np.generic]:
        if name not in dataset.column_names:
            raise DataError(
                f"partitioner {self.name}: no column {name!r}; the data set "
                f"has {', '.join(dataset.column_names)}"
            )
        return np.asarray(dataset.with_format("numpy")[name][:])

    def _labels_and_ids(
        self, column: npt.NDArray[np.generic]
    ) -> tuple[IntArray, IntArray | None]:
        if self.name == "natural-id":
            owners = np.unique(column, return_inverse=True)[1].astype(np.int64)
            return np.zeros(len(column), np.int64), owners
        return column.astype(np.int64), None


class SameMixPartitioner(Partitioner):  # type: ignore[misc]
    """Divides a test split in the class mixes of the clients' training rows.

    Parameters
    ----------
    train
        Partitioner of the training split. Its dataset must be assigned before the
        first test partition is loaded: load a training partition first, or read
        ``FederatedDataset.partitioners``.
    """

    def __init__(self, train: SuitePartitioner) -> None:
        super().__init__()
        self.train = train

    @property
    def num_partitions(self) -> int:
        """Number of clients."""
        return self.train.num_partitions

    @cached_property
    def indices(self) -> tuple[IntArray, ...]:
        """Rows of each client in the test split, ascending."""
        if not self.train.is_dataset_assigned():
            raise DataError("load a training partition before the first test partition")
        return self.train.test_indices(self.dataset)

    def load_partition(self, partition_id: int) -> "Dataset":
        """Return the test rows of client ``partition_id``."""
        return self.dataset.select(self.indices[partition_id])


class IidPartitioner(SuitePartitioner):
    """Equal sizes at random; see :func:`fedsuite.data.partition.iid`."""

    def __init__(
        self, num_partitions: int, partition_by: str = "label", seed: int = 0
    ) -> None:
        super().__init__("iid", num_partitions, partition_by, seed)


class ShardPartitioner(SuitePartitioner):
    """Shards of sorted labels; see :func:`fedsuite.data.partition.shards`."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        shards_per_client: int = 2,
    ) -> None:
        options: dict[str, Value] = {"shards-per-client": shards_per_client}
        super().__init__("shards", num_partitions, partition_by, seed, options)


class DirichletPartitioner(SuitePartitioner):
    """Classes divided by Dir(alpha); see :func:`fedsuite.data.partition.dirichlet`."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        alpha: float = 0.5,
        min_size: int = 10,
    ) -> None:
        options: dict[str, Value] = {
            "dirichlet-alpha": alpha,
            "dirichlet-min-size": min_size,
        }
        super().__init__("dirichlet", num_partitions, partition_by, seed, options)


class ClientDirichletPartitioner(SuitePartitioner):
    """Mixes from Dir(alpha); see :func:`fedsuite.data.partition.dirichlet_client`."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        alpha: float = 1.0,
    ) -> None:
        options: dict[str, Value] = {"dirichlet-client-alpha": alpha}
        super().__init__("dirichlet-client", num_partitions, partition_by, seed, options)


class PathologicalPartitioner(SuitePartitioner):
    """So many classes each; see :func:`fedsuite.data.partition.pathological`."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        classes_per_client: int = 2,
    ) -> None:
        options: dict[str, Value] = {"classes-per-client": classes_per_client}
        super().__init__("pathological", num_partitions, partition_by, seed, options)


class PowerLawPartitioner(SuitePartitioner):
    """Sizes like ``1 / k**exponent``; see :func:`fedsuite.data.partition.power_law`."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        exponent: float = 1.0,
        data_fraction: float = 1.0,
    ) -> None:
        options: dict[str, Value] = {
            "power-law-exponent": exponent,
            "data-fraction": data_fraction,
        }
        super().__init__("power-law", num_partitions, partition_by, seed, options)


class CovariateShiftPartitioner(SuitePartitioner):
    """Shifted inputs; see :func:`fedsuite.data.covariate_shift.covariate_shift`.

    Give this class the training split alone. Give the test split to a
    :class:`SameMixPartitioner`, which shifts the test rows the same way. Split a data set
    without a test split first. Do not split a client's rows afterwards: copies of one row
    would be in both halves.
    """

    _GENERATOR: ClassVar[str] = "covariate-shift"

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        *,
        features: Sequence[str] = ("image",),
        squared_shift: float = 5.0,
        dimensions: int = 20,
        replacement: bool = True,
        exponent: float = 1.0,
        data_fraction: float = 1.0,
    ) -> None:
        options: dict[str, Value] = {
            "squared-shift": squared_shift,
            "shift-dimensions": dimensions,
            "shift-replacement": replacement,
            "power-law-exponent": exponent,
            "data-fraction": data_fraction,
        }
        name = self._GENERATOR
        super().__init__(name, num_partitions, partition_by, seed, options, features)


class PrintedShiftPartitioner(CovariateShiftPartitioner):
    """The FedAKD paper's printed weights, which shift by a quarter of ``squared_shift``."""

    _GENERATOR: ClassVar[str] = "covariate-shift-printed"


class FirstComponentPartitioner(SuitePartitioner):
    """Blocks of a sort; see :func:`fedsuite.data.covariate_shift.first_component`."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
        *,
        features: Sequence[str] = ("image",),
        dimensions: int = 20,
        exponent: float = 1.0,
        data_fraction: float = 1.0,
    ) -> None:
        options: dict[str, Value] = {
            "shift-dimensions": dimensions,
            "power-law-exponent": exponent,
            "data-fraction": data_fraction,
        }
        name = "first-component"
        super().__init__(name, num_partitions, partition_by, seed, options, features)


class ClassCountPartitioner(SuitePartitioner):
    """``k`` classes for client ``k``; see :func:`fedsuite.data.partition.class_count`."""

    def __init__(
        self, num_partitions: int, partition_by: str = "label", seed: int = 0
    ) -> None:
        super().__init__("class-count", num_partitions, partition_by, seed)


class NaturalIdPartitioner(SuitePartitioner):
    """Natural owners; see :func:`fedsuite.data.partition.natural_id`."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str,
        seed: int = 0,
        natural_ids: str = "group",
        min_size: int = 1,
    ) -> None:
        options: dict[str, Value] = {
            "natural-ids": natural_ids,
            "natural-min-size": min_size,
        }
        super().__init__("natural-id", num_partitions, partition_by, seed, options)
