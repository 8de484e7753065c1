"""Loading of an experiment's data."""

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import ConfigError, DataError, Refused
from fedsuite.core.keys import AUTO, Value
from fedsuite.core.rng import numpy_stream
from fedsuite.data.catalog import PARTITIONERS
from fedsuite.data.client_validation import hold_out_validation
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.division import Division, Partition, Samples
from fedsuite.data.federated import FederatedData
from fedsuite.data.label_noise import flip_labels
from fedsuite.data.own_rows import OwnRows
from fedsuite.data.owners import KEY, named_clients, refuse_nobody
from fedsuite.data.public import PublicOptions, read_public_folder
from fedsuite.data.rows import Rows
from fedsuite.data.specs import DatasetSpec, IntArray, RawData, Source
from fedsuite.data.splits import Parts, split_parts

AnyNumber = TypeVar("AnyNumber", bound=np.generic)

_MOST_HELD_OUT = 0.9

_TEST_FRACTION = DataSettings().test_fraction


def load_federated_data(values: Mapping[str, Value], seed: int) -> FederatedData:
    """Load the data set of an experiment and divide it among its clients.

    The result is kept, so that all clients of a process share it.

    Parameters
    ----------
    values
        Values by kebab-case key. Other keys are ignored. Missing keys take their default.
    seed
        Seed of the experiment, which decides the partition and the clients' validation
        rows. With ``fresh-test-split`` it decides the test part too; else all seeds share
        one.

    Raises
    ------
    ConfigError
        If a key does not allow its value.
    DataError
        If the data cannot be read or cannot be divided as asked.
    """
    settings = DataSettings.of(values)
    spec = settings.spec
    source = spec.source.of(values)
    if isinstance(source, OwnRows):
        # Its function divides the rows.
        source = replace(source, test_fraction=settings.test_fraction)
    reads = spec.folder or spec.reader or spec.source.READS_FOLDER
    division = PARTITIONERS[settings.partitioner].of(values)
    _refuse_mixtures(settings, division)
    return _divided(
        settings,
        source,
        data_folder(settings.data_dir) if reads else None,
        public_options(settings),
        division,
        seed,
    )


def data_folder(data_dir: str) -> Path | None:
    """Return the data folder of the experiment or else of the environment, if any."""
    text = os.environ.get("FEDSUITE_DATA", "") if data_dir == AUTO else data_dir
    if not text:
        return None
    folder = Path(text).expanduser().resolve()
    if not folder.exists():
        raise DataError(f"data folder {folder} (data-dir or FEDSUITE_DATA) does not exist")
    return folder


def public_options(settings: DataSettings) -> PublicOptions:
    """Return the options of public data."""
    folder = settings.public_dir
    if folder == AUTO:
        folder = os.environ.get("FEDSUITE_PUBLIC", "")
        if not folder:
            raise ConfigError(
                "key public-dir = 'auto': set the environment variable FEDSUITE_PUBLIC to "
                "the folder of public images on this machine"
            )
    return PublicOptions(
        settings.public_size,
        settings.public_used,
        Path(folder).expanduser().resolve() if folder else None,
    )


@functools.lru_cache(maxsize=2)
def _loaded(
    spec: DatasetSpec,
    source: Source,
    data_dir: Path | None,
    fractions: tuple[float, float, float],
    public_size: int,
    fresh_seed: int | None,
) -> tuple[DatasetSpec, RawData, Parts]:
    """Return the prepared rows of a data set, described, and the division into parts."""
    raw = source.load(spec, data_dir)
    published = raw.num_train is not None and not spec.reader
    if published and fractions[0] != _TEST_FRACTION:
        raise Refused(
            {"test-fraction": fractions[0], "dataset": spec.name},
            "it has a published test part",
            "leave it out, or set {client-test-fraction}, which splits off rows of the "
            "training part",
            idle=True,
        )
    parts = split_parts(raw, *fractions, public_size, fresh_seed)
    return source.described(spec, raw), source.prepare(raw, parts.train), parts


@functools.lru_cache(maxsize=4)
def _divided(
    settings: DataSettings,
    source: Source,
    data_dir: Path | None,
    public: PublicOptions,
    division: Division,
    seed: int,
) -> FederatedData:
    noise = settings.label_noise
    fractions = (
        settings.test_fraction,
        settings.client_test_fraction,
        settings.server_validation_fraction,
    )
    spec = source.shaped(settings.spec)
    spec, raw, parts = _loaded(
        spec,
        source,
        data_dir,
        fractions,
        public.held_out,
        seed if settings.fresh_test_split else None,
    )
    if not raw.by_class:
        _refuse_classes(division, noise)
    held = parts.train, parts.client_test
    samples = Samples(
        *_pair(raw.labels, held),
        *(_pair(raw.ids, held) if raw.ids is not None else (None, None)),
        *(_pair(raw.features, held) if division.USES_FEATURES else (None, None)),
    )
    partition = division.divide(samples, settings.num_clients, seed)
    new: frozenset[int] = frozenset()
    if settings.evaluation_only or not Rows.of(partition.train).sizes.all():
        new = _new_clients(settings, raw, parts, partition)
    if new and type(source).prepare is not Source.prepare:
        raw = _prepared_without(new, source, settings.spec, data_dir, parts, partition)
    labels = raw.labels[parts.train]
    if noise:
        labels = _with_noise(labels, spec, partition, noise, seed)
    kept = settings.client_validation_fraction
    if kept:
        groups = None if raw.groups is None else raw.groups[parts.train]
        partition = hold_out_validation(partition, labels, groups, kept, seed)
    return FederatedData(
        spec,
        raw,
        parts,
        partition,
        settings.scaling,
        division.NAME,
        labels,
        noise,
        _public_features(spec, raw, parts, public),
        new,
    )


def _new_clients(
    settings: DataSettings, raw: RawData, parts: Parts, partition: Partition
) -> frozenset[int]:
    """Return the clients that never train, by the key or for want of rows."""
    names = raw.owner_names
    by_client = {k: names[o] for k, o in enumerate(partition.owners)} if names else {}
    text, count = settings.evaluation_only, len(partition.train)
    without = np.flatnonzero(Rows.of(partition.train).sizes == 0).tolist()
    new = named_clients(text, by_client, count).union(without)
    refuse_nobody(text, new, count)
    held = {
        "server-validation-fraction": (
            settings.server_validation_fraction,
            parts.validation,
        ),
        "public-size": (settings.public_size, parts.public),
    }
    for name, (value, rows) in held.items():
        if new and partition.owners and len(rows):
            raise Refused(
                {KEY: text, name: value},
                "the server's rows are drawn from all owners, also from those that are to "
                "be new",
                f"leave {{{name}}} out",
            )
    return new


def _prepared_without(
    new: frozenset[int],
    source: Source,
    spec: DatasetSpec,
    data_dir: Path | None,
    parts: Parts,
    partition: Partition,
) -> RawData:
    """Return the rows as prepared by statistics of those alone that are trained on."""
    rows = [rows for k, rows in enumerate(partition.train) if k not in new]
    raw = source.load(source.shaped(spec), data_dir)
    return source.prepare(raw, parts.train[np.sort(np.concatenate(rows))])


def _public_features(
    spec: DatasetSpec, raw: RawData, parts: Parts, public: PublicOptions
) -> npt.NDArray[Any]:
    """Return the unscaled features of the public data."""
    if public.folder is not None:
        return public.choose(read_public_folder(spec, public.folder))
    features: npt.NDArray[Any] = raw.features[public.choose(parts.public)]
    return features


def _refuse_classes(division: Division, label_noise: float) -> None:
    """Refuse options that need one class per row, where labels are something else."""
    if division.BY_CLASS:
        usable = ", ".join(name for name, p in PARTITIONERS.items() if not p.BY_CLASS)
        raise ConfigError(
            f"key partitioner = {division.NAME!r}: rows of this data set have no class; "
            f"choose one of {usable}"
        )
    if label_noise:
        raise ConfigError(
            f"key label-noise = {label_noise}: rows of this data set have no class to flip"
        )


def _pair(
    values: npt.NDArray[AnyNumber], parts: tuple[IntArray, IntArray]
) -> tuple[npt.NDArray[AnyNumber], npt.NDArray[AnyNumber]]:
    train, test = parts
    return values[train], values[test]


def _refuse_mixtures(settings: DataSettings, division: Division) -> None:
    """Refuse values that exclude each other."""
    if settings.label_noise and division.SHARES_ROWS:
        raise ConfigError(
            f"key label-noise = {settings.label_noise}: partitioner {division.NAME} "
            "gives rows to several clients, whose wrong labels would mix; set one of the "
            "two otherwise"
        )
    held_out = (settings.client_test_fraction, settings.server_validation_fraction)
    if sum(held_out) > _MOST_HELD_OUT:
        raise ConfigError(
            f"keys client-test-fraction = {held_out[0]:g} and server-validation-fraction = "
            f"{held_out[1]:g}: expected at most {_MOST_HELD_OUT:g} together"
        )


def _with_noise(
    labels: npt.NDArray[Any],
    spec: DatasetSpec,
    partition: Partition,
    ratio: float,
    seed: int,
) -> npt.NDArray[Any]:
    """Return the labels of the training part with each client's share of them flipped."""
    noisy = labels.copy()
    for client_id, rows in enumerate(partition.train):
        rng = numpy_stream(seed, "label-noise", 0, client_id)
        noisy[rows] = flip_labels(labels[rows], spec.num_classes, ratio, rng)
    return noisy
