"""A data set divided among clients, ready for training."""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedsuite.core.column_scaling import ColumnScaling, ColumnSums
from fedsuite.core.errors import DataError, Refused
from fedsuite.core.keys import Value
from fedsuite.data.division import Partition
from fedsuite.data.public import PublicData
from fedsuite.data.rows import Rows
from fedsuite.data.specs import DatasetSpec, IntArray, RawData
from fedsuite.data.splits import Parts

if TYPE_CHECKING:
    import torch

_READ_TOGETHER = 4096
"""Most rows that are read at once."""


@dataclass(frozen=True)
class Split:
    """Inputs and labels of some rows, shared between callers: never write into them.

    Parameters
    ----------
    features
        ``[rows, *input_shape]``: float32, or int64 for words.
    labels
        int64 ``[rows]``, or float32 where targets are numbers; of sequences ``[rows,
        length]``, one target per position, with
        :data:`~fedsuite.data.specs.IGNORED` for no target.
    never_right
        Label that no prediction matches, such as the unknown word; None for no such label.
    """

    features: "torch.Tensor"
    labels: "torch.Tensor"
    never_right: int | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ClientData:
    """Rows of one client by purpose, in the order of the data set.

    Parameters
    ----------
    train, test
        Rows to train on and to be tested on.
    validation
        Rows to validate on, none of them in ``train``; None where clients have none.
    columns
        Names of the inputs, where the client is a site that told them.
    """

    train: Split
    test: Split
    validation: Split | None = None
    columns: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs."""
        parts = (self.train, self.test, self.validation)
        return sum(part.features.nbytes for part in parts if part is not None)


class FederatedData:
    """A data set divided among clients, which share one decoded copy.

    Parameters
    ----------
    spec
        The data set.
    raw
        Its decoded rows.
    parts
        Rows of the data set by what they are for.
    partition
        Positions of each client's rows within ``parts.train`` and ``parts.client_test``.
    scaling
        As the key ``scaling``.
    partitioner
        Name of the partitioner, for the description.
    train_labels
        Labels of the training part as the clients see them; None for the true labels.
    label_noise
        Share of wrong training labels, for the description.
    public
        Unscaled features of the public data; None for no public data.
    evaluation_only
        Clients that never train though they may have rows to; those without any are known.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        raw: RawData,
        parts: Parts,
        partition: Partition,
        scaling: str,
        partitioner: str,
        train_labels: IntArray | None = None,
        label_noise: float = 0.0,
        public: npt.NDArray[Any] | None = None,
        evaluation_only: frozenset[int] = frozenset(),
    ) -> None:
        self.spec = spec
        self._evaluation_only = evaluation_only
        self.partition = partition
        self.partitioner = partitioner
        self._raw = raw
        self._rows = parts
        self._test_labels = raw.labels[parts.client_test]
        self._train_labels = (
            raw.labels[parts.train] if train_labels is None else train_labels
        )
        self._label_noise = label_noise
        self._public = raw.features[:0] if public is None else public
        self._scaling = scaling
        self._by_class = raw.labels.ndim == 1 and raw.labels.dtype.kind in "iu"
        _check_scaling(spec, scaling, words=self.holds_words)
        self._ahead: dict[int, ClientData] = {}

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.partition.train)

    @functools.cached_property
    def evaluation_only(self) -> frozenset[int]:
        """Clients that never train, and are evaluated as sites that join later would be.

        Named by the key, or without training rows.
        """
        without = np.flatnonzero(Rows.of(self.partition.train).sizes == 0)
        return self._evaluation_only.union(without.tolist())

    def with_borrowers(self, count: int) -> "FederatedData":
        """Return the data with more clients, which hold the rows of those that train.

        No client of it has a name.
        """
        lenders = [k for k in range(self.num_clients) if k not in self.evaluation_only]
        clients = [
            *range(self.num_clients),
            *itertools.islice(itertools.cycle(lenders), count),
        ]
        part = self.partition
        return FederatedData(
            self.spec,
            self._raw,
            self._rows,
            Partition(
                [part.train[k] for k in clients],
                [part.test[k] for k in clients],
                validation=[part.validation[k] for k in clients] if part.validation else (),
            ),
            self._scaling,
            self.partitioner,
            self._train_labels,
            self._label_noise,
            self._public,
            self._evaluation_only,
        )

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients in order; empty where they have none."""
        names = self._raw.owner_names
        return tuple(names[owner] for owner in self.partition.owners) if names else ()

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.spec.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class, its number where it has none."""
        return self.spec.class_names or tuple(map(str, range(self.num_classes)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of a table's inputs in their order; empty where they are not known here."""
        return self.spec.columns

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return self.spec.input_shape

    @property
    def holds_words(self) -> bool:
        """Whether inputs are numbers of words."""
        integers = not self.spec.is_image and self._raw.features.dtype.kind in "iu"
        return self.spec.words or integers

    @functools.cached_property
    def column_scaling(self) -> ColumnScaling | None:
        """What is done to columns of a table; None where nothing is.

        Each client's training rows are added up, in the clients' order, as sites do; those
        of clients that never train are not.
        """
        rule = scaling_rule(self.spec, self._scaling)
        if rule is None:
            return None
        positions = number_positions(self.spec)
        sums = (
            ColumnSums.of(self._raw.features[self._rows.train[rows]][:, positions])
            for client_id, rows in enumerate(self.partition.train)
            if client_id not in self.evaluation_only
        )
        return ColumnScaling.from_sums(rule, sums)

    @property
    def standardisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel that images were scaled with.

        Inputs times deviation plus mean lie in 0..1.
        """
        if self._scaling == "standard":
            return self.spec.mean, self.spec.std
        if self._scaling == "none" and self.spec.is_image:
            return (0.0,), (1.0 / self.spec.max_value,)
        return (0.0,), (1.0,)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the clients' positions and labels, by purpose.

        Noisy labels count as the clients see them; public data, as held out, not as used.
        """
        digest = hashlib.sha256()
        if not self._rows.is_plain:
            # Positions alone would not tell which rows were held out.
            for rows in (self._rows.train, self._rows.client_test, self._rows.validation):
                digest.update(f"{len(rows)};".encode())
                digest.update(rows.astype("<i8").tobytes())
        if len(self._rows.public):
            digest.update(f"public/{len(self._rows.public)};".encode())
            digest.update(self._rows.public.astype("<i8").tobytes())
        for part, _, labels in self._parts():
            for piece in _pieces(part, labels):
                digest.update(piece)
        return digest.hexdigest()

    @property
    def description(self) -> dict[str, Value]:
        """Names, sizes and fingerprint of the data, for the run's folder."""
        train, test, *validation = (part.positions for part, *_ in self._parts())
        held_out = {
            "global-test-rows": len(self._rows.test),
            "validation-rows": len(self._rows.validation),
        }
        return {
            "dataset": self.spec.name,
            "partitioner": self.partitioner,
            "num-clients": self.num_clients,
            "num-classes": self.num_classes,
            "input-shape": "x".join(map(str, self.input_shape)),
            "train-rows": len(train),
            "test-rows": len(test),
            **({"client-validation-rows": len(validation[0])} if validation else {}),
            "unused-train-rows": _unused(self._rows.train, train, *validation),
            "unused-test-rows": _unused(self._rows.client_test, test),
            **self._majority(),
            **({} if self._rows.is_plain else held_out),
            **({"label-noise": self._label_noise} if self._label_noise else {}),
            **self._public_description(),
            "fingerprint": self.fingerprint,
        }

    def _public_description(self) -> dict[str, Value]:
        public = self.public_set()
        if not len(public):
            return {}
        return {
            "public-rows": len(public),
            "public-rows-held-out": len(self._rows.public),
            "public-fingerprint": public.fingerprint,
        }

    def _majority(self) -> dict[str, Value]:
        """Return the accuracy of always guessing the largest class."""
        if not self._by_class:
            return {}
        counts = {"train": self.class_counts(), "test": self.test_class_counts()}
        return {
            f"largest-class-{part}": float(held.sum(axis=0).max() / held.sum())
            for part, held in counts.items()
        }

    def client(self, client_id: int) -> ClientData:
        """Return the rows of one client, ``0 <= client_id < num_clients``.

        Read anew each time: who needs them again keeps them.
        """
        if not 0 <= client_id < self.num_clients:
            raise DataError(
                f"no client {client_id}: the data has {self.num_clients} clients"
            )
        return self._ahead.pop(client_id, None) or self._clients_of([client_id])[0]

    def read_ahead(self, client_ids: Sequence[int]) -> None:
        """Read the rows of small clients together, for the next :meth:`client` of each."""
        if sum(len(self.partition.train[k]) for k in client_ids) <= _READ_TOGETHER:
            read = self._clients_of(client_ids)
            self._ahead = dict(zip(client_ids, read, strict=True))

    def _clients_of(self, client_ids: Sequence[int]) -> list[ClientData]:
        parts = (self._read(client_ids, *part) for part in self._parts())
        together = zip(client_ids, *parts, strict=True)
        return [ClientData(*splits) for _, *splits in together]

    def _read(
        self, client_ids: Sequence[int], part: Rows, rows: IntArray, labels: IntArray
    ) -> Iterator[Split]:
        """Yield clients' rows of one part, each in memory of its own."""
        positions = [part[client_id] for client_id in client_ids]
        if len(positions) > 1 and sum(map(len, positions)) <= _READ_TOGETHER:
            places = np.concatenate(positions)
            whole = self._split(rows[places], labels[places])
            sizes = [len(own) for own in positions]
            features = whole.features.split_with_sizes(sizes)
            targets = whole.labels.split_with_sizes(sizes)
            for x, y in zip(features, targets, strict=True):
                # Copied, for torch's alignment.
                yield Split(x.clone(), y.clone(), whole.never_right)
            return
        for places in positions:
            yield self._split(rows[places], labels[places])

    def test_set(self) -> Split:
        """Return the global test set."""
        return self._test_set

    def validation_set(self) -> Split:
        """Return the server's validation rows; none unless the experiment asks for some."""
        return self._validation_set

    def public_set(self) -> PublicData:
        """Return the public data; no rows unless the experiment asks for some."""
        return self._public_set

    def class_counts(self) -> npt.NDArray[np.int64]:
        """Return training rows by client and class, ``[num_clients, num_classes]``.

        Noisy labels count as the clients see them. Sequences have no class: all rows are
        counted in one column.
        """
        return self._counts(self.partition.train, self._train_labels)

    def test_class_counts(self) -> npt.NDArray[np.int64]:
        """Return test rows by client and class, ``[num_clients, num_classes]``."""
        return self._counts(self.partition.test, self._test_labels)

    @functools.cached_property
    def _test_set(self) -> Split:
        return self._split(self._rows.test, self._raw.labels[self._rows.test])

    @functools.cached_property
    def _validation_set(self) -> Split:
        rows = self._rows.validation
        return self._split(rows, self._raw.labels[rows])

    @functools.cached_property
    def _public_set(self) -> PublicData:
        # Copied, because torch cannot use arrays that are mapped from a file.
        return PublicData(self._scaled(np.array(self._public)))

    def _parts(self) -> list[tuple[Rows, IntArray, IntArray]]:
        """Return positions by client, numbered rows and their labels, for each purpose."""
        train = (self._rows.train, self._train_labels)
        parts = [
            (Rows.of(self.partition.train), *train),
            (Rows.of(self.partition.test), self._rows.client_test, self._test_labels),
        ]
        if self.partition.validation:
            parts.append((Rows.of(self.partition.validation), *train))
        return parts

    def validation_class_counts(self) -> npt.NDArray[np.int64] | None:
        """Return validation rows by client and class; None where clients have none."""
        if not self.partition.validation:
            return None
        return self._counts(self.partition.validation, self._train_labels)

    def _counts(self, part: Sequence[IntArray], labels: IntArray) -> npt.NDArray[np.int64]:
        rows = Rows.of(part)
        if not self._by_class:
            return rows.sizes[:, None].copy()
        cells = rows.owners * self.num_classes + labels[rows.positions]
        counts = np.bincount(cells, minlength=len(rows) * self.num_classes)
        return counts.reshape(len(rows), self.num_classes)

    def _split(self, rows: IntArray, row_labels: IntArray) -> Split:
        import torch

        kind = torch.int64 if row_labels.dtype.kind in "iu" else torch.float32
        labels = torch.empty(row_labels.shape, dtype=kind)
        labels.copy_(torch.from_numpy(row_labels))
        features = self._scaled(self._raw.features[rows])
        return Split(features, labels, self._raw.never_right)

    def _scaled(self, raw: npt.NDArray[Any]) -> "torch.Tensor":
        columns = self.column_scaling if len(raw) else None
        return scale_inputs(raw, self.spec, self._scaling, columns)


def scaling_rule(spec: DatasetSpec, scaling: str) -> Literal["none", "federated"] | None:
    """Return what is done to columns of a table by sums of all clients; None of nothing."""
    if scaling == "federated":
        return "federated"
    fills = spec.schema is not None and spec.schema.needs_means
    return "none" if fills else None


def number_positions(spec: DatasetSpec) -> list[int]:
    """Return the positions of a table's inputs that are numbers."""
    if spec.schema is not None:
        return list(spec.schema.number_positions)
    return list(range(spec.input_shape[0]))


def _check_scaling(spec: DatasetSpec, scaling: str, *, words: bool) -> None:
    if scaling == "federated" and (spec.is_image or words or len(spec.input_shape) != 1):
        raise Refused(
            {"scaling": scaling, "dataset": spec.name},
            "its rows are no table of numbers",
            "set 'standard'",
        )


def scale_inputs(
    raw: npt.NDArray[Any],
    spec: DatasetSpec,
    scaling: str,
    columns: ColumnScaling | None = None,
) -> "torch.Tensor":
    """Return raw values ``[rows, *input_shape]`` as the key ``scaling`` says.

    ``columns`` is what is done to columns of a table. The memory is torch's own, for
    torch's alignment.
    """
    import torch

    if columns is not None:
        positions = number_positions(spec)
        done = np.array(raw, np.float32)
        done[:, positions] = columns.applied(done[:, positions])
        raw = done
    words = spec.words or (not spec.is_image and raw.dtype.kind in "iu")
    kind = torch.int64 if words else torch.float32
    features = torch.empty((len(raw), *spec.input_shape), dtype=kind)
    features.copy_(torch.from_numpy(raw))
    if spec.is_image and scaling != "none":
        features.div_(spec.max_value)
        if scaling == "standard":
            features.sub_(_by_channel(spec.mean, len(spec.input_shape)))
            features.div_(_by_channel(spec.std, len(spec.input_shape)))
    return features


@functools.cache
def _by_channel(values: tuple[float, ...], axes: int) -> "torch.Tensor":
    """Return one number per channel, shaped to broadcast over images with so many axes."""
    import torch

    return torch.tensor(values).reshape(-1, *[1] * (axes - 1))


def _pieces(part: Rows, labels: IntArray) -> Iterator[bytes | memoryview]:
    """Yield each client's number, positions and labels, as bytes for a hash."""
    both = [
        memoryview(array.astype("<i8").tobytes())
        for array in (part.positions, labels[part.positions])
    ]
    widths = [view.nbytes // max(len(part.positions), 1) for view in both]
    first = 0
    for client, size in enumerate(part.sizes.tolist()):
        yield f"{client}/{size};".encode()
        for view, width in zip(both, widths, strict=True):
            yield view[first * width : (first + size) * width]
        first += size


def _unused(rows: IntArray, *used: IntArray) -> int:
    """Return how many rows are at no position of ``used``."""
    is_unused = np.ones(len(rows), np.bool_)
    for positions in used:
        is_unused[positions] = False
    return int(is_unused.sum())
