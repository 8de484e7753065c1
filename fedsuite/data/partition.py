"""Partitioners, as pure functions on arrays.

A partitioner takes the labels of the training and the test part. It returns each client's
positions in both. A client is tested on the classes that it trains on, in the same
proportions. :data:`fedsuite.data.PARTITIONERS` lists them by the value of the key
``partitioner``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError
from fedsuite.data.shift_report import ClientShift
from fedsuite.data.specs import IntArray

MAX_REDRAWS = 500
"""Draws of a Dirichlet partition before the partition counts as impossible."""


@dataclass(frozen=True)
class Samples:
    """Labels, natural owners and inputs of the rows to divide.

    Parameters
    ----------
    train_labels, test_labels
        Class of each row of the two parts, >= 0.
    train_ids, test_ids
        Natural owner of each row, or ``None`` where the data set names none.
    train_features, test_features
        Inputs, ``[rows, ...]``; ``None`` for partitioners that ignore inputs.
    """

    train_labels: IntArray
    test_labels: IntArray
    train_ids: IntArray | None = None
    test_ids: IntArray | None = None
    train_features: npt.NDArray[Any] | None = None
    test_features: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Partition:
    """Rows of each client.

    Parameters
    ----------
    train, test
        Positions of each client's rows in the training part and in the test part.
    shifts
        Measured covariate shift of each client; empty without such a shift. Of all its
        rows, those for validation too.
    validation
        Positions in the training part of each client's validation rows, which ``train``
        lacks; empty where clients have none.
    """

    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    shifts: tuple[ClientShift, ...] = ()
    validation: tuple[IntArray, ...] = ()


def iid(samples: Samples, num_clients: int, rng: np.random.Generator) -> Partition:
    """Divide both parts at random into equal sizes (to within one row)."""
    train, test = (
        tuple(np.array_split(rng.permutation(len(labels)), num_clients))
        for labels in (samples.train_labels, samples.test_labels)
    )
    return Partition(train, test)


def power_law(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    power_law_exponent: float = 1.0,
    data_fraction: float = 1.0,
) -> Partition:
    """Divide both parts at random into sizes proportional to ``1 / k**exponent``.

    ``k`` is the client's number from 1, so client 0 holds most. Exponent 0 is IID. The
    share ``data_fraction`` of each part, rounded down, is divided. The rest stays unused.
    """
    parts = []
    for labels in (samples.train_labels, samples.test_labels):
        used = int(data_fraction * len(labels))
        sizes = power_law_sizes(used, num_clients, power_law_exponent)
        parts.append(cut(rng.permutation(len(labels)), sizes))
    train, test = parts
    return Partition(train, test)


def power_law_sizes(total: int, num_clients: int, exponent: float) -> IntArray:
    """Return sizes proportional to ``1 / k**exponent`` that add up to ``total``.

    Shares are rounded down. Each of the first clients gets one of the rows left over.
    """
    weights = np.arange(1, num_clients + 1, dtype=np.float64) ** -exponent
    sizes: IntArray = np.floor(total * weights / weights.sum()).astype(np.int64)
    sizes[: total - sizes.sum()] += 1
    return sizes


def shards(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    shards_per_client: int = 2,
) -> Partition:
    """Deal each client the same number of equal shards of the rows sorted by label.

    A shard holds one class where the rows of each class divide into whole shards. A client
    may get several shards of one class; :func:`pathological` deals different classes.
    Shards differ by one row where the rows do not divide equally. The test part is dealt
    class by class in the proportions of the training shards.
    """
    num_rows, num_shards = len(samples.train_labels), num_clients * shards_per_client
    if num_shards > num_rows:
        raise DataError(
            f"partitioner shards: num-clients = {num_clients} times shards-per-client = "
            f"{shards_per_client} is more than the {num_rows} training rows"
        )
    shuffled = rng.permutation(num_rows)
    by_label = shuffled[np.argsort(samples.train_labels[shuffled], kind="stable")]
    pieces = np.array_split(by_label, num_shards)
    deal = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    train = [np.concatenate([pieces[shard] for shard in hand]) for hand in deal]
    return _with_matching_test(samples, train, rng)


def dirichlet(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    dirichlet_alpha: float = 0.5,
    dirichlet_min_size: int = 10,
) -> Partition:
    """Divide each class among the clients in proportions drawn from Dir(alpha).

    Small alpha gives each class to few clients; large alpha is IID. Client sizes differ.
    The draw is repeated until each client has ``dirichlet_min_size`` training rows, at most
    :data:`MAX_REDRAWS` times.
    """
    rows_of = [rng.permutation(rows) for rows in _rows_by_class(samples.train_labels)]
    sizes = np.array([len(rows) for rows in rows_of])
    if num_clients * dirichlet_min_size <= sizes.sum():
        for _ in range(MAX_REDRAWS):
            draw = rng.dirichlet(np.full(num_clients, dirichlet_alpha), len(sizes))
            counts = _round_shares(draw * sizes[:, None], sizes)
            if counts.sum(axis=0).min() >= dirichlet_min_size:
                pieces = [cut(rows, c) for rows, c in zip(rows_of, counts, strict=True)]
                train = [np.concatenate(held) for held in zip(*pieces, strict=True)]
                return _with_matching_test(samples, train, rng)
    raise DataError(
        f"partitioner dirichlet: dirichlet-alpha = {dirichlet_alpha:g} does not give each "
        f"of num-clients = {num_clients} clients dirichlet-min-size = {dirichlet_min_size} "
        f"of the {sizes.sum()} training rows; raise alpha, or lower one of the others"
    )


def dirichlet_client(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    dirichlet_client_alpha: float = 1.0,
) -> Partition:
    """Give all clients equal sizes, and each a class mix drawn from Dir(alpha).

    The clients take turns. In its turn, a client draws a class from its mix, among the
    classes that have rows left, and takes one row of this class. Each of the first clients
    gets one of the rows that do not divide equally.
    """
    pools = [rng.permutation(rows) for rows in _rows_by_class(samples.train_labels)]
    left = np.array([len(pool) for pool in pools])
    mixes = rng.dirichlet(np.full(len(pools), dirichlet_client_alpha), num_clients)
    ladders = _ladders(mixes, left)
    uniforms = rng.random(int(left.sum()))
    owners: list[list[int]] = [[] for _ in range(num_clients)]
    for turn, uniform in enumerate(uniforms):
        client = turn % num_clients
        chosen = int(np.searchsorted(ladders[client], uniform, side="right"))
        left[chosen] -= 1
        owners[client].append(int(pools[chosen][left[chosen]]))
        if not left[chosen]:
            ladders = _ladders(mixes, left)
    train = [np.array(rows, dtype=np.int64) for rows in owners]
    return _with_matching_test(samples, train, rng)


def _ladders(mixes: np.ndarray, left: IntArray) -> np.ndarray:
    """Return each client's cumulative class probabilities over the classes with rows."""
    open_classes = left > 0
    if not open_classes.any():
        return mixes
    weights = mixes * open_classes
    # A client whose own classes are all used up draws from what is left.
    starved = weights.sum(axis=1) <= 0
    weights[starved] = left
    ladders = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    # Rounding must neither leave a gap at the top nor reach a class without rows.
    ladders[:, np.flatnonzero(open_classes)[-1] :] = 1.0
    return ladders


def pathological(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    classes_per_client: int = 2,
) -> Partition:
    """Give each client exactly so many classes, and use every row.

    Each client in turn takes the classes that fewest clients hold so far. Ties are broken
    at random. So the classes' numbers of holders differ by at most one. The rows of a class
    are divided equally among the holders of the class.
    """
    rows_of = _rows_by_class(samples.train_labels)
    num_classes = len(rows_of)
    if classes_per_client > num_classes or num_clients * classes_per_client < num_classes:
        raise DataError(
            f"partitioner pathological: num-clients = {num_clients} with classes-per-"
            f"client = {classes_per_client} cannot hold exactly {num_classes} classes"
        )
    holders: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(num_clients):
        held = np.array([len(clients) for clients in holders])
        for chosen in np.lexsort((rng.random(num_classes), held))[:classes_per_client]:
            holders[chosen].append(client)
    train: list[list[IntArray]] = [[] for _ in range(num_clients)]
    for rows, clients in zip(rows_of, holders, strict=True):
        if len(clients) > len(rows):
            raise DataError(
                f"partitioner pathological: num-clients = {num_clients} with "
                f"classes-per-client = {classes_per_client} puts {len(clients)} clients on "
                f"a class of {len(rows)} training rows"
            )
        pieces = np.array_split(rng.permutation(rows), len(clients))
        for client, piece in zip(rng.permutation(clients), pieces, strict=True):
            train[client].append(piece)
    return _with_matching_test(samples, [np.concatenate(t) for t in train], rng)


def class_count(samples: Samples, num_clients: int, rng: np.random.Generator) -> Partition:
    """Give client ``k`` (from 1) the first ``k`` classes, and all clients equal sizes.

    Each client holds its classes in equal numbers (to within one row). The common size is
    the largest that the scarcest class allows. Rows stay unused, mostly of the last
    classes.
    """
    num_classes = len(np.unique(samples.train_labels))
    if num_clients > num_classes:
        raise DataError(
            f"partitioner class-count: num-clients = {num_clients} is more than the "
            f"{num_classes} classes, of which client k holds k"
        )
    classes = np.unique(samples.train_labels)
    parts = []
    for labels in (samples.train_labels, samples.test_labels):
        rows_of = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
        counts = _class_count_quotas(np.array([len(rows) for rows in rows_of]), num_clients)
        pieces = [cut(rows, c) for rows, c in zip(rows_of, counts, strict=True)]
        parts.append(tuple(np.concatenate(held) for held in zip(*pieces, strict=True)))
    if min(map(len, parts[0])) < num_clients:
        raise DataError(
            f"partitioner class-count: {len(samples.train_labels)} training rows are too "
            f"few for num-clients = {num_clients} clients that hold 1 to {num_clients} "
            "classes"
        )
    train, test = parts
    return Partition(train, test)


def _class_count_quotas(supply: IntArray, num_clients: int) -> IntArray:
    """Return rows by class and client of the largest equal size that ``supply`` allows."""
    held = np.arange(1, num_clients + 1)
    classes = np.arange(len(supply))[:, None]

    def quotas(size: int) -> IntArray:
        counts: IntArray = size // held + (classes < size % held)
        return np.where(classes < held, counts, 0)

    size = 0
    step = 1 << int(supply.sum()).bit_length()
    while step:
        if (quotas(size + step).sum(axis=1) <= supply).all():
            size += step
        step >>= 1
    return quotas(size)


def natural_id(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    natural_ids: str = "group",
    natural_min_size: int = 1,
) -> Partition:
    """Divide by the rows' natural owners, such as writers.

    Parameters
    ----------
    natural_ids
        ``"group"`` deals all owners at random into ``num_clients`` groups of equal size (to
        within one owner). ``"sample"`` draws ``num_clients`` owners among those with
        training and test rows, and makes each a client. ``"largest"`` takes the owners with
        most rows instead: client 0 is the largest, whatever the seed.
    natural_min_size
        Owners with fewer rows, training and test together, are left out.
    """
    if samples.train_ids is None or samples.test_ids is None:
        raise DataError(
            "partitioner natural-id: this data set names no owner of its rows; use one "
            "that does, such as femnist, or another partitioner"
        )
    sizes = np.bincount(np.concatenate([samples.train_ids, samples.test_ids]))
    usable = (sizes >= natural_min_size) & (sizes > 0)
    if natural_ids != "group":
        usable[np.setdiff1d(np.arange(len(sizes)), samples.train_ids)] = False
        if len(samples.test_ids):
            usable[np.setdiff1d(np.arange(len(sizes)), samples.test_ids)] = False
    owners = np.flatnonzero(usable)
    if natural_ids == "largest":
        owners = owners[np.argsort(-sizes[owners], kind="stable")]
    else:
        owners = rng.permutation(owners)
    if num_clients > len(owners):
        raise DataError(
            f"partitioner natural-id: num-clients = {num_clients} is more than the "
            f"{len(owners)} owners with natural-min-size = {natural_min_size} rows"
        )
    groups = np.array_split(owners, num_clients if natural_ids == "group" else len(owners))
    client_of = np.full(len(sizes), -1)
    for client, group in enumerate(groups[:num_clients]):
        client_of[group] = client
    train, test = (
        tuple(_rows_by_class(client_of[ids], num_clients))
        for ids in (samples.train_ids, samples.test_ids)
    )
    return Partition(train, test)


def match_test(
    samples: Samples, train: Sequence[IntArray], rng: np.random.Generator
) -> tuple[IntArray, ...]:
    """Divide the test part in the class mixes of the clients' training rows.

    Each class is divided in proportion to the clients' training rows of the class, so no
    client is tested on a class that it does not hold. Each share is rounded down or up. The
    rows left over go to the clients that lack most of their share of all classes so far, so
    that the clients' sizes come out right too. A class without training rows is divided in
    proportion to the clients' sizes.
    """
    num_clients = len(train)
    labels = samples.train_labels
    num_classes = 1 + int(np.concatenate([labels, samples.test_labels]).max(initial=0))
    held = np.stack([np.bincount(labels[rows], minlength=num_classes) for rows in train])
    lacking = np.zeros(num_clients)
    parts: list[list[IntArray]] = [[np.empty(0, np.int64)] for _ in train]
    for label, rows in enumerate(_rows_by_class(samples.test_labels, num_classes)):
        weights = held[:, label] if held[:, label].any() else held.sum(axis=1)
        total = int(weights.sum())
        counts, remainder = np.divmod(weights * len(rows), total)
        lacking += remainder / total
        order = np.lexsort((rng.random(num_clients), -lacking, remainder == 0))
        extra = order[: len(rows) - counts.sum()]
        counts[extra] += 1
        lacking[extra] -= 1
        for client, piece in enumerate(cut(rng.permutation(rows), counts)):
            parts[client].append(piece)
    return tuple(np.concatenate(pieces) for pieces in parts)


def _with_matching_test(
    samples: Samples, train: Sequence[IntArray], rng: np.random.Generator
) -> Partition:
    return Partition(tuple(train), match_test(samples, train, rng))


def _rows_by_class(labels: IntArray, num_classes: int | None = None) -> list[IntArray]:
    """Return the rows of each class, of classes that occur if ``num_classes`` is None."""
    classes = np.unique(labels) if num_classes is None else np.arange(num_classes)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], classes, side="left")
    ends = np.searchsorted(labels[order], classes, side="right")
    return [order[first:last] for first, last in zip(bounds, ends, strict=True)]


def cut(rows: IntArray, sizes: IntArray) -> tuple[IntArray, ...]:
    """Cut rows into consecutive pieces; rows beyond the sizes stay unused."""
    ends = np.cumsum(sizes)
    return tuple(rows[end - size : end] for size, end in zip(sizes, ends, strict=True))


def _round_shares(shares: np.ndarray, totals: IntArray) -> IntArray:
    """Round each row of shares to whole numbers with its total, largest remainder first."""
    counts: IntArray = np.floor(shares).astype(np.int64)
    order = np.argsort(counts - shares, axis=1, kind="stable")
    ranks = np.argsort(order, axis=1, kind="stable")
    counts += ranks < (totals - counts.sum(axis=1))[:, None]
    return counts
