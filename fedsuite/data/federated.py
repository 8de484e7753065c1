"""A data set divided among clients, ready for training."""

import functools
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedsuite.data.catalog import DATASETS
from fedsuite.data.experiment_keys import KEYS
from fedsuite.data.label_noise import flip_labels
from fedsuite.data.partition import Partition
from fedsuite.data.partition_specs import PARTITIONERS, partition_indices
from fedsuite.data.specs import DatasetSpec, IntArray, RawData
from fedsuite.data.split import split_rows
from fedsuite.errors import ConfigError, DataError
from fedsuite.keys import AUTO, Value
from fedsuite.rng import numpy_stream

if TYPE_CHECKING:
    import torch

CLIENT_CACHE_BYTES = 1 << 30
"""Scaled inputs of recently used clients that a process keeps."""


@dataclass(frozen=True)
class Split:
    """Inputs and labels of some rows. Shared between callers: never write into them.

    Parameters
    ----------
    features
        ``[rows, *input_shape]``: float32, or int64 where they are numbers of words.
    labels
        int64 ``[rows]``; of sequences ``[rows, length]``, one target a position, which is
        :data:`~fedsuite.data.specs.IGNORED` where there is none.
    never_right
        Label that no prediction counts as right; None where there is none.
    """

    features: "torch.Tensor"
    labels: "torch.Tensor"
    never_right: int | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ClientData:
    """Training and test rows of one client, in the order of the data set."""

    train: Split
    test: Split


@dataclass(frozen=True)
class PartitionRow:
    """Who holds what: one client's line of the partition table.

    Parameters
    ----------
    client_id
        Number of the client, from 0.
    train_size, test_size
        Rows held.
    num_classes
        Classes with at least one training row.
    class_counts
        Training rows of each class.
    """

    client_id: int
    train_size: int
    test_size: int
    num_classes: int
    class_counts: tuple[int, ...]


class FederatedData:
    """A data set divided among clients; one decoded copy serves all of them.

    Parameters
    ----------
    spec
        The data set.
    raw
        Its decoded rows.
    rows
        Rows of the training part and of the test part.
    partition
        Positions of each client's rows within the two parts.
    scaling
        ``"standard"`` or ``"unit"``, as the key ``scaling``.
    partitioner
        Name of the partitioner, for the description.
    train_labels
        Labels of the training part as its holders see them; None for the true ones.
    label_noise
        Share of them that is wrong, for the description.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        raw: RawData,
        rows: tuple[IntArray, IntArray],
        partition: Partition,
        scaling: str,
        partitioner: str,
        train_labels: IntArray | None = None,
        label_noise: float = 0.0,
    ) -> None:
        self.spec = spec
        self.partition = partition
        self.partitioner = partitioner
        self._raw = raw
        self._train_rows, self._test_rows = rows
        self._test_labels = raw.labels[self._test_rows]
        self._train_labels = (
            raw.labels[self._train_rows] if train_labels is None else train_labels
        )
        self._label_noise = label_noise
        self._scaling = scaling
        self._by_class = raw.labels.ndim == 1
        self._clients: OrderedDict[int, ClientData] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.partition.train)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.spec.num_classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return self.spec.input_shape

    @property
    def standardisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel that images were scaled with.

        Inputs times deviation plus mean lie in 0..1.
        """
        if self._scaling == "standard":
            return self.spec.mean, self.spec.std
        return (0.0,), (1.0,)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the clients' positions and labels, training and test.

        Labels with noise count as their holders see them.
        """
        digest = hashlib.sha256()
        for part, labels in self._parts():
            for client, positions in enumerate(part):
                digest.update(f"{client}/{len(positions)};".encode())
                digest.update(positions.astype("<i8").tobytes())
                digest.update(labels[positions].astype("<i8").tobytes())
        return digest.hexdigest()

    @property
    def description(self) -> dict[str, Value]:
        """What the run's folder records of the data: names, sizes, fingerprint."""
        used_train, used_test = (sum(map(len, part)) for part, _ in self._parts())
        noise = {"label-noise": self._label_noise} if self._label_noise else {}
        return {
            "dataset": self.spec.name,
            "partitioner": self.partitioner,
            "num-clients": self.num_clients,
            "num-classes": self.num_classes,
            "input-shape": "x".join(map(str, self.input_shape)),
            "train-rows": used_train,
            "test-rows": used_test,
            "unused-train-rows": len(self._train_rows) - used_train,
            "unused-test-rows": len(self._test_rows) - used_test,
            **self._majority(),
            **noise,
            "fingerprint": self.fingerprint,
        }

    def _majority(self) -> dict[str, Value]:
        """Return how unbalanced the classes are: the accuracy of always guessing one."""
        if not self._by_class:
            return {}
        counts = {"train": self.class_counts(), "test": self.test_class_counts()}
        return {
            f"largest-class-{part}": float(held.sum(axis=0).max() / held.sum())
            for part, held in counts.items()
        }

    def client(self, client_id: int) -> ClientData:
        """Return the rows of one client, ``0 <= client_id < num_clients``."""
        if not 0 <= client_id < self.num_clients:
            raise DataError(
                f"no client {client_id}: the data has {self.num_clients} clients"
            )
        with self._lock:
            if client_id in self._clients:
                self._clients.move_to_end(client_id)
                return self._clients[client_id]
        train = self.partition.train[client_id]
        test = self.partition.test[client_id]
        data = ClientData(
            self._split(self._train_rows[train], self._train_labels[train]),
            self._split(self._test_rows[test], self._test_labels[test]),
        )
        with self._lock:
            self._clients[client_id] = data
            while len(self._clients) > 1 and self._held_bytes() > CLIENT_CACHE_BYTES:
                self._clients.popitem(last=False)
        return data

    def test_set(self) -> Split:
        """Return the whole test part, rows that no client holds included."""
        return self._test_set

    def class_counts(self) -> npt.NDArray[np.int64]:
        """Return training rows by client and class, ``[num_clients, num_classes]``.

        Labels with noise count as their holders see them. Where labels are sequences, rows
        have no class, and all are counted in one column.
        """
        return self._counts(self.partition.train, self._train_labels)

    def test_class_counts(self) -> npt.NDArray[np.int64]:
        """Return test rows by client and class, ``[num_clients, num_classes]``."""
        return self._counts(self.partition.test, self._test_labels)

    @functools.cached_property
    def _test_set(self) -> Split:
        return self._split(self._test_rows, self._test_labels)

    def _parts(self) -> tuple[tuple[tuple[IntArray, ...], IntArray], ...]:
        return (
            (self.partition.train, self._train_labels),
            (self.partition.test, self._test_labels),
        )

    def _counts(
        self, part: tuple[IntArray, ...], labels: IntArray
    ) -> npt.NDArray[np.int64]:
        if not self._by_class:
            return np.array([[len(positions)] for positions in part])
        return np.stack([np.bincount(labels[p], minlength=self.num_classes) for p in part])

    def _held_bytes(self) -> int:
        return sum(
            split.features.nbytes
            for data in self._clients.values()
            for split in (data.train, data.test)
        )

    def _split(self, rows: IntArray, row_labels: IntArray) -> Split:
        """Gather and scale rows, in memory that torch allocated, for its alignment."""
        import torch

        words = not self.spec.is_image and self._raw.features.dtype.kind in "iu"
        kind = torch.int64 if words else torch.float32
        features = torch.empty((len(rows), *self.input_shape), dtype=kind)
        features.copy_(torch.from_numpy(self._raw.features[rows]))
        if self.spec.is_image:
            features.div_(self.spec.max_value)
            if self._scaling == "standard":
                per_channel = (-1, *[1] * (len(self.input_shape) - 1))
                features.sub_(torch.tensor(self.spec.mean).reshape(per_channel))
                features.div_(torch.tensor(self.spec.std).reshape(per_channel))
        labels = torch.empty(row_labels.shape, dtype=torch.int64)
        labels.copy_(torch.from_numpy(row_labels))
        return Split(features, labels, self._raw.never_right)


def load_federated_data(values: Mapping[str, Value], seed: int) -> FederatedData:
    """Load the data set of an experiment and divide it among its clients.

    The result is kept, so that all clients of a process share it.

    Parameters
    ----------
    values
        The experiment by kebab-case key; keys that are not about data are ignored, and
        missing ones take their default.
    seed
        Seed of the experiment. The partition depends on it; the division of a data set
        into training and test part does not, so all seeds share one test part.

    Raises
    ------
    ConfigError
        If a key has a value that it does not allow.
    DataError
        If the data cannot be read or cannot be divided as asked.
    """
    known = {key.name: key.parse(values.get(key.name, key.default)) for key in KEYS}
    dataset = DATASETS[str(known["dataset"])]
    partitioner = PARTITIONERS[str(known["partitioner"])]
    return _divided(
        (
            dataset.name,
            _data_folder(str(known["data-dir"])) if dataset.folder else None,
            tuple(dataset.options(values).items()),
        ),
        float(known["test-fraction"]),
        str(known["scaling"]),
        float(known["label-noise"]),
        partitioner.name,
        int(known["num-clients"]),
        tuple(partitioner.options(values).items()),
        seed,
    )


def partition_table(data: FederatedData) -> list[PartitionRow]:
    """Return who holds what, one row per client."""
    return [
        PartitionRow(
            k, len(train), len(test), int((counts > 0).sum()), tuple(counts.tolist())
        )
        for k, (train, test, counts) in enumerate(
            zip(data.partition.train, data.partition.test, data.class_counts(), strict=True)
        )
    ]


def _data_folder(data_dir: str) -> Path | None:
    """Return the data folder that the experiment or the environment names, if any."""
    text = os.environ.get("FEDSUITE_DATA", "") if data_dir == AUTO else data_dir
    if not text:
        return None
    folder = Path(text).expanduser().resolve()
    if not folder.is_dir():
        raise DataError(f"data folder {folder} (data-dir or FEDSUITE_DATA) does not exist")
    return folder


_Source = tuple[str, Path | None, tuple[tuple[str, Value], ...]]
"""Name of a data set, the data folder, and the values of the data set's keys."""


@functools.lru_cache(maxsize=2)
def _loaded(
    source: _Source, test_fraction: float
) -> tuple[RawData, tuple[IntArray, IntArray]]:
    """Return the rows of a data set, prepared, and which are for training and tests."""
    dataset, data_dir, options = source
    spec = DATASETS[dataset]
    raw = spec.load(spec, data_dir, **dict(options))
    rows = split_rows(raw, test_fraction)
    if spec.prepare is not None:
        raw = spec.prepare(raw, rows[0], **dict(options))
    return raw, rows


@functools.lru_cache(maxsize=4)
def _divided(
    source: _Source,
    test_fraction: float,
    scaling: str,
    label_noise: float,
    partitioner: str,
    num_clients: int,
    options: tuple[tuple[str, Value], ...],
    seed: int,
) -> FederatedData:
    spec = DATASETS[source[0]]
    raw, rows = _loaded(source, test_fraction)
    train_rows, test_rows = rows
    _check_sequences(raw, partitioner, label_noise)
    partition = partition_indices(
        partitioner,
        raw.labels[train_rows],
        raw.labels[test_rows],
        num_clients,
        dict(options),
        seed,
        (raw.ids[train_rows], raw.ids[test_rows]) if raw.ids is not None else None,
    )
    labels = _with_noise(raw.labels[train_rows], spec, partition, label_noise, seed)
    return FederatedData(
        spec, raw, rows, partition, scaling, partitioner, labels, label_noise
    )


def _check_sequences(raw: RawData, partitioner: str, label_noise: float) -> None:
    """Refuse what needs one class a row where labels are sequences."""
    if raw.labels.ndim == 1:
        return
    if PARTITIONERS[partitioner].by_class:
        usable = ", ".join(name for name, p in PARTITIONERS.items() if not p.by_class)
        raise ConfigError(
            f"key partitioner = {partitioner!r}: rows of this data set have no class; "
            f"choose one of {usable}"
        )
    if label_noise:
        raise ConfigError(
            f"key label-noise = {label_noise}: rows of this data set have no class to flip"
        )


def _with_noise(
    labels: IntArray, spec: DatasetSpec, partition: Partition, ratio: float, seed: int
) -> IntArray:
    """Return the labels of the training part with each client's share of them flipped."""
    noisy = labels.copy()
    for client_id, rows in enumerate(partition.train):
        rng = numpy_stream(seed, "label-noise", 0, client_id)
        noisy[rows] = flip_labels(labels[rows], spec.num_classes, ratio, rng)
    return noisy
