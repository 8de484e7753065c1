"""The partitioners that experiments can name, their keys, and the checks common to all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.keys import Key, Value
from fedsuite.core.rng import numpy_stream
from fedsuite.data import covariate_shift, partition
from fedsuite.data.partition import Partition, Samples
from fedsuite.data.specs import IntArray


@dataclass(frozen=True)
class PartitionerSpec:
    """One way to divide a data set.

    Parameters
    ----------
    name
        Value of the key ``partitioner``.
    description
        One line for listings.
    function
        Called as ``function(samples, num_clients, rng, **options)``, with one option per
        key, under the key's argument name.
    keys
        Keys that only this partitioner reads.
    exhaustive
        Whether every row goes to a client. The data's description counts unused rows.
    by_class
        Whether the function needs one class per row.
    uses_features
        Whether the function looks at the inputs.
    shares_rows
        Whether a row may go to several clients, or several times to one client.
    """

    name: str
    description: str
    function: Callable[..., Partition]
    keys: tuple[Key, ...] = ()
    exhaustive: bool = True
    by_class: bool = True
    uses_features: bool = False
    shares_rows: bool = False

    def options(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values of this partitioner's keys, by kebab-case name."""
        return {key.name: key.parse(values.get(key.name, key.default)) for key in self.keys}


_POWER_LAW_EXPONENT = Key(
    "power-law-exponent",
    1.0,
    "how fast sizes fall with the client's number; 0 is equal sizes",
    minimum=0,
)
_DATA_FRACTION = Key(
    "data-fraction",
    1.0,
    "sum of the clients' sizes as a share of the rows; 1 is all, 0.5 the FedAKD paper's",
    above=0,
    maximum=1,
)
_SHIFT_DIMENSIONS = Key(
    "shift-dimensions",
    20,
    "principal components in which inputs are shifted, and shifts measured",
    minimum=1,
)
_SHIFT_KEYS = (
    Key(
        "squared-shift",
        5.0,
        "C, squared Mahalanobis distance of a client's mean from the pool's; 0 is none",
        minimum=0,
    ),
    _SHIFT_DIMENSIONS,
    Key(
        "shift-replacement",
        True,
        "whether rows are drawn with replacement; without, the shift falls short of C",
    ),
    _POWER_LAW_EXPONENT,
    _DATA_FRACTION,
)

_SPECS = (
    PartitionerSpec("iid", "equal sizes at random", partition.iid, by_class=False),
    PartitionerSpec(
        "shards",
        "sort by label, deal each client the same number of equal shards",
        partition.shards,
        (
            Key(
                "shards-per-client",
                2,
                "shards dealt to each client; many approach iid",
                minimum=1,
            ),
        ),
    ),
    PartitionerSpec(
        "dirichlet",
        "each class divided among the clients by Dir(alpha)",
        partition.dirichlet,
        (
            Key(
                "dirichlet-alpha",
                0.5,
                "evenness of a class over clients; to 0 one client each, large is iid",
                above=0,
            ),
            Key(
                "dirichlet-min-size",
                10,
                "least training rows of a client; the draw is repeated until it holds",
                minimum=1,
            ),
        ),
    ),
    PartitionerSpec(
        "dirichlet-client",
        "each client's class mix drawn from Dir(alpha), equal sizes",
        partition.dirichlet_client,
        (
            Key(
                "dirichlet-client-alpha",
                1.0,
                "evenness of a client's mix; to 0 one class each, large is iid",
                above=0,
            ),
        ),
    ),
    PartitionerSpec(
        "pathological",
        "exactly so many classes per client, every row used",
        partition.pathological,
        (Key("classes-per-client", 2, "classes that each client holds", minimum=1),),
    ),
    PartitionerSpec(
        "power-law",
        "sizes proportional to 1/k^exponent for client k from 1, at random",
        partition.power_law,
        (_POWER_LAW_EXPONENT, _DATA_FRACTION),
        exhaustive=False,
        by_class=False,
    ),
    PartitionerSpec(
        "covariate-shift",
        "inputs shifted by density-ratio weights, sizes as power-law, rows shared",
        covariate_shift.covariate_shift,
        _SHIFT_KEYS,
        exhaustive=False,
        uses_features=True,
        shares_rows=True,
    ),
    PartitionerSpec(
        "covariate-shift-printed",
        "the FedAKD paper's printed weights: a quarter of C, half the covariance",
        covariate_shift.printed_covariate_shift,
        _SHIFT_KEYS,
        exhaustive=False,
        uses_features=True,
        shares_rows=True,
    ),
    PartitionerSpec(
        "first-component",
        "the FedAKD code's blocks, sorted by the first principal component; without C",
        covariate_shift.first_component,
        (_SHIFT_DIMENSIONS, _POWER_LAW_EXPONENT, _DATA_FRACTION),
        exhaustive=False,
        uses_features=True,
    ),
    PartitionerSpec(
        "class-count",
        "client k from 1 holds the first k classes, equal sizes, some rows unused",
        partition.class_count,
        exhaustive=False,
    ),
    PartitionerSpec(
        "natural-id",
        "by the natural owner of the rows: person, hospital, state",
        partition.natural_id,
        (
            Key(
                "natural-ids",
                "group",
                "group deals all owners to the clients; sample draws one owner per client; "
                "largest: one owner per client, in order of size",
                choices=("group", "sample", "largest"),
            ),
            Key(
                "natural-min-size",
                1,
                "owners with fewer rows are left out; 1 keeps all",
                minimum=1,
            ),
        ),
        exhaustive=False,
        by_class=False,
    ),
)

PARTITIONERS: Mapping[str, PartitionerSpec] = MappingProxyType({s.name: s for s in _SPECS})
"""Partitioners by the value of the key ``partitioner``."""


def partition_indices(
    name: str,
    labels_train: IntArray,
    labels_test: IntArray,
    num_clients: int,
    options: Mapping[str, Value],
    seed: int,
    ids: tuple[IntArray, IntArray] | None = None,
    features: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None,
) -> Partition:
    """Divide a training part and a test part among clients.

    Parameters
    ----------
    name
        Name of the partitioner.
    labels_train, labels_test
        Class of each row, >= 0.
    num_clients
        Number of clients, >= 1.
    options
        Values of the partitioner's keys by kebab-case name. Other entries are ignored.
        Missing keys take their default.
    seed
        Seed of the experiment; draws come from the stream ``"partition"``.
    ids
        Natural owner of each training row and of each test row.
    features
        Inputs of each training row and of each test row, ``[rows, ...]``; needed by
        partitioners that look at inputs.

    Returns
    -------
    Partition
        Each client's positions in the two parts: ascending, and never empty.

    Raises
    ------
    ConfigError
        If there is no such partitioner, or a key does not allow its value.
    DataError
        If the parts cannot be divided so.
    """
    samples = Samples(
        labels_train,
        labels_test,
        *(ids if ids is not None else (None, None)),
        *(features if features is not None else (None, None)),
    )
    _check_count(num_clients, len(labels_test), "test")
    result = divide(name, samples, num_clients, options, seed)
    test = _checked(PARTITIONERS[name], "test", result.test, len(labels_test))
    return replace(result, test=test)


def partition_training_part(
    name: str,
    labels: IntArray,
    num_clients: int,
    options: Mapping[str, Value],
    seed: int,
    ids: IntArray | None = None,
    features: npt.NDArray[Any] | None = None,
) -> Partition:
    """Divide a training part alone, as :func:`partition_indices` does with a test part."""
    none = np.empty(0, np.int64)
    samples = Samples(
        labels,
        none,
        ids,
        none if ids is not None else None,
        features,
        features[:0] if features is not None else None,
    )
    return divide(name, samples, num_clients, options, seed)


def divide(
    name: str, samples: Samples, num_clients: int, options: Mapping[str, Value], seed: int
) -> Partition:
    """Return a partition; only its training positions are checked."""
    if name not in PARTITIONERS:
        raise ConfigError(
            f"key partitioner = {name!r}: expected one of {', '.join(PARTITIONERS)}"
        )
    spec = PARTITIONERS[name]
    num_rows = len(samples.train_labels)
    _check_count(num_clients, num_rows, "training")
    values = spec.options(options)
    arguments = {key.argument: values[key.name] for key in spec.keys}
    result = spec.function(
        samples, num_clients, numpy_stream(seed, "partition"), **arguments
    )
    return replace(result, train=_checked(spec, "training", result.train, num_rows))


def _check_count(num_clients: int, num_rows: int, part: str) -> None:
    if not 1 <= num_clients <= num_rows:
        raise DataError(
            f"key num-clients = {num_clients}: expected 1 to {num_rows}, the number of "
            f"{part} rows"
        )


def _checked(
    spec: PartitionerSpec, part: str, clients: Sequence[IntArray], num_rows: int
) -> tuple[IntArray, ...]:
    """Sort each client's positions; refuse empty clients and broken partitions."""
    for client, rows in enumerate(clients):
        if not len(rows):
            keys = "".join(f", {key.name}" for key in spec.keys)
            raise DataError(
                f"partitioner {spec.name}: client {client} of num-clients = {len(clients)} "
                f"gets none of the {num_rows} {part} rows; change num-clients{keys}"
            )
    uses = np.bincount(np.concatenate(clients), minlength=num_rows)
    shared = uses.max() > 1 and not spec.shares_rows
    if shared or (spec.exhaustive and uses.min() < 1):
        raise DataError(f"partitioner {spec.name} does not use each {part} row once")
    return tuple(np.sort(rows) for rows in clients)
