"""fedsuite's partitioners for any Flower app, as classes of flwr-datasets.

:class:`SuitePartitioner` divides the training split, in any way of
:data:`fedsuite.data.PARTITIONERS`. :class:`SameMixPartitioner` divides the test split in
the same mix::

    train = SuitePartitioner(Shards(shards_per_client=2), 100, partition_by="label")
    data = FederatedDataset(
        dataset="ylecun/mnist",
        partitioners={"train": train, "test": SameMixPartitioner(train)},
    )
    data.load_partition(0, "train")
    data.load_partition(0, "test")
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from datasets import Image
from datasets.features.features import require_decoding
from flwr_datasets.partitioner import Partitioner
from typing_extensions import override

from fedsuite.core.errors import DataError
from fedsuite.data.division import Division, Partition, Samples
from fedsuite.data.pictures import pixels_of
from fedsuite.data.shift_report import ClientShift
from fedsuite.data.specs import IntArray

if TYPE_CHECKING:
    from datasets import Dataset


class SuitePartitioner(Partitioner):  # type: ignore[misc]
    """Divides a ``datasets.Dataset`` in one of fedsuite's ways.

    Where inputs are shifted, give this class the training split alone and the test split to
    a :class:`SameMixPartitioner`, which shifts the test rows the same way. Split a data set
    without a test split first. Do not split a client's rows afterwards: copies of one row
    would be in both halves.

    Parameters
    ----------
    division
        The way, such as ``Shards(shards_per_client=2)``.
    num_partitions
        Number of clients.
    partition_by
        Column of integer labels; for ``NaturalId`` the column of owners.
    seed
        Seed of the draws.
    features
        Columns of inputs (images or numbers), read where the division looks at inputs.
    """

    def __init__(
        self,
        division: Division,
        num_partitions: int,
        partition_by: str,
        seed: int = 0,
        features: Sequence[str] = ("image",),
    ) -> None:
        super().__init__()
        self.division = division
        self.features = (features,) if isinstance(features, str) else tuple(features)
        self.partition_by = partition_by
        self.seed = seed
        self._num_partitions = num_partitions

    @property
    @override
    def num_partitions(self) -> int:
        return self._num_partitions

    @property
    def indices(self) -> tuple[IntArray, ...]:
        """Rows of each client in the dataset, ascending."""
        return tuple(self._partition.train)

    @property
    def shifts(self) -> tuple[ClientShift, ...]:
        """Measured covariate shift of each client; empty without such a shift."""
        return self._partition.shifts

    @cached_property
    def _partition(self) -> Partition:
        samples = self._samples(self.dataset)
        return self.division.divide_training(samples, self.num_partitions, self.seed)

    def test_indices(self, test: "Dataset") -> tuple[IntArray, ...]:
        """Return the rows of each client in a test split, mixed as in the training split.

        Raises
        ------
        DataError
            If an owner occurs in one split alone, and so changes who gets which rows.
        """
        samples = self._samples(self.dataset, test)
        parts = self.division.divide(samples, self.num_partitions, self.seed)
        if not all(map(np.array_equal, parts.train, self.indices)):
            raise DataError(
                f"partitioner {self.division.NAME}: column {self.partition_by!r} of the "
                "test split holds other owners than that of the training split"
            )
        return tuple(parts.test)

    @override
    def load_partition(self, partition_id: int) -> "Dataset":
        return self.dataset.select(self.indices[partition_id])

    def _samples(self, train: "Dataset", *test: "Dataset") -> Samples:
        """Return the rows of a training split and, where given, of a test split."""
        splits = (train, *test)
        column = np.concatenate([self._read(s, self.partition_by) for s in splits])
        cuts = [len(train)]
        ids: Sequence[IntArray | None] = (None, None)
        features: Sequence[npt.NDArray[Any] | None] = (None, None)
        labels = np.zeros(len(column), np.int64)
        if self.division.BY_OWNER:
            owners = np.unique(column, return_inverse=True)[1].astype(np.int64)
            ids = np.split(owners, cuts)
        else:
            labels = column.astype(np.int64)
        if self.division.USES_FEATURES:
            features = np.split(np.concatenate([self._inputs(s) for s in splits]), cuts)
        return Samples(*np.split(labels, cuts), *ids, *features)

    def _inputs(self, dataset: "Dataset") -> npt.NDArray[Any]:
        """Return the inputs as rows of numbers."""
        columns = []
        for name in self.features:
            values = self._read(dataset, name)
            if values.dtype.kind not in "biuf":
                raise DataError(
                    f"partitioner {self.division.NAME}: column {name!r} holds no numbers "
                    "of one shape for all rows"
                )
            columns.append(values.reshape(len(values), -1))
        return np.concatenate(columns, axis=1)

    def _read(self, dataset: "Dataset", name: str) -> npt.NDArray[np.generic]:
        if name not in dataset.column_names:
            raise DataError(
                f"partitioner {self.division.NAME}: no column {name!r}; the data set "
                f"has {', '.join(dataset.column_names)}"
            )
        feature = dataset.features[name]
        if isinstance(feature, Image):
            files = dataset.cast_column(name, Image(decode=False))[name]
            return _pixels(files, feature.mode)
        if require_decoding(feature):
            raise DataError(
                f"partitioner {self.division.NAME}: column {name!r} holds files, and not "
                "one picture per row: name another column"
            )
        return np.asarray(dataset.with_format("numpy")[name][:])


def _pixels(files: Iterable[Mapping[str, Any]], mode: str | None) -> npt.NDArray[Any]:
    """Return pictures of one shape as numbers, of several shapes as an array of objects.

    They are opened here, because ``datasets`` opens files of any format.
    """
    contents = (f["bytes"] or Path(f["path"]).read_bytes() for f in files)
    pictures = [pixels_of(content, mode) for content in contents]
    if len({picture.shape for picture in pictures}) == 1:
        return np.stack(pictures)
    return np.empty(len(pictures), object)


class SameMixPartitioner(Partitioner):  # type: ignore[misc]
    """Divides a test split in the class mixes of the clients' training rows.

    Parameters
    ----------
    train
        Partitioner of the training split, whose dataset must be assigned first: load a
        training partition, or read ``FederatedDataset.partitioners``.
    """

    def __init__(self, train: SuitePartitioner) -> None:
        super().__init__()
        self.train = train

    @property
    @override
    def num_partitions(self) -> int:
        return self.train.num_partitions

    @cached_property
    def indices(self) -> tuple[IntArray, ...]:
        """Rows of each client in the test split, ascending."""
        if not self.train.is_dataset_assigned():
            raise DataError("load a training partition before the first test partition")
        return self.train.test_indices(self.dataset)

    @override
    def load_partition(self, partition_id: int) -> "Dataset":
        return self.dataset.select(self.indices[partition_id])
