"""Partitioners that go by labels or by natural owners.

A client is tested on the classes that it trains on, in the same proportions.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator
from typing_extensions import override

from fedsuite.core.errors import DataError
from fedsuite.core.settings import key
from fedsuite.data.division import Division, Partition, Samples
from fedsuite.data.rows import Rows
from fedsuite.data.specs import IntArray

MAX_REDRAWS = 500
"""Draws of a Dirichlet partition before the partition counts as impossible."""


class Iid(Division):
    """Equal sizes at random (to within one row)."""

    NAME: ClassVar[str] = "iid"
    BY_CLASS: ClassVar[bool] = False

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        train, test = (
            Rows.even(rng.permutation(len(labels)), num_clients)
            for labels in (samples.train_labels, samples.test_labels)
        )
        return Partition(train, test)


class Sized(Division):
    """Sizes of clients by a power law; a base of partitioners."""

    EXHAUSTIVE: ClassVar[bool] = False

    power_law_exponent: float = key(
        default=1.0,
        help="how fast sizes fall with the client's number; 0 is equal sizes",
        minimum=0,
    )
    data_fraction: float = key(
        default=1.0,
        help="sum of the clients' sizes as a share of the rows; 1 is all, 0.5 the FedAKD "
        "paper's",
        above=0,
        maximum=1,
    )

    def sizes(self, num_rows: int, num_clients: int) -> IntArray:
        """Return the clients' sizes; the share of the rows is rounded down."""
        used = int(self.data_fraction * num_rows)
        return power_law_sizes(used, num_clients, self.power_law_exponent)


class PowerLaw(Sized):
    """Sizes proportional to 1/k^exponent for client k from 1, at random."""

    NAME: ClassVar[str] = "power-law"
    BY_CLASS: ClassVar[bool] = False

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        train, test = (
            Rows(rng.permutation(len(labels)), self.sizes(len(labels), num_clients))
            for labels in (samples.train_labels, samples.test_labels)
        )
        return Partition(train, test)


def power_law_sizes(total: int, num_clients: int, exponent: float) -> IntArray:
    """Return sizes proportional to ``1 / k**exponent`` that add up to ``total``.

    Shares are rounded down. The first clients get one more row each.
    """
    weights = np.arange(1, num_clients + 1, dtype=np.float64) ** -exponent
    sizes: IntArray = np.floor(total * weights / weights.sum()).astype(np.int64)
    sizes[: total - sizes.sum()] += 1
    return sizes


class Shards(Division):
    """Shards of the rows sorted by label, equally many per client.

    A shard holds one class where the rows of each class divide into whole shards. A client
    may get several shards of one class; :class:`Pathological` deals different classes.
    Shards differ by one row where the rows do not divide equally.
    """

    NAME: ClassVar[str] = "shards"

    shards_per_client: int = key(
        default=2, help="shards dealt to each client; many approach iid", minimum=1
    )

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        num_rows, per_client = len(samples.train_labels), self.shards_per_client
        num_shards = num_clients * per_client
        if num_shards > num_rows:
            raise DataError(
                f"partitioner shards: num-clients = {num_clients} times shards-per-client "
                f"= {per_client} is more than the {num_rows} training rows"
            )
        shuffled = rng.permutation(num_rows)
        by_label = shuffled[np.argsort(samples.train_labels[shuffled], kind="stable")]
        pieces = np.array_split(by_label, num_shards)
        deal = rng.permutation(num_shards).reshape(num_clients, per_client)
        train = [np.concatenate([pieces[shard] for shard in hand]) for hand in deal]
        return _with_matching_test(samples, train, rng)


class Dirichlet(Division):
    """Each class divided among the clients in proportions drawn from Dir(alpha).

    Client sizes differ. The draw is repeated until each client has
    ``dirichlet_min_size`` training rows, at most :data:`MAX_REDRAWS` times.
    """

    NAME: ClassVar[str] = "dirichlet"

    dirichlet_alpha: float = key(
        default=0.5,
        help="evenness of a class over clients; to 0 one client each, large is iid",
        above=0,
    )
    dirichlet_min_size: int = key(
        default=10,
        help="least training rows of a client; the draw is repeated until it holds",
        minimum=1,
    )

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        alpha, least = self.dirichlet_alpha, self.dirichlet_min_size
        rows_of = [rng.permutation(rows) for rows in _rows_by_class(samples.train_labels)]
        sizes = np.array([len(rows) for rows in rows_of])
        if num_clients * least <= sizes.sum():
            for _ in range(MAX_REDRAWS):
                draw = rng.dirichlet(np.full(num_clients, alpha), len(sizes))
                counts = _round_shares(draw * sizes[:, None], sizes)
                if counts.sum(axis=0).min() >= least:
                    pieces = [cut(rows, c) for rows, c in zip(rows_of, counts, strict=True)]
                    train = [np.concatenate(held) for held in zip(*pieces, strict=True)]
                    return _with_matching_test(samples, train, rng)
        raise DataError(
            f"partitioner dirichlet: dirichlet-alpha = {alpha:g} does not give each of "
            f"num-clients = {num_clients} clients dirichlet-min-size = {least} of the "
            f"{sizes.sum()} training rows; raise alpha, or lower one of the others"
        )


class DirichletClient(Division):
    """Equal sizes, and a class mix drawn from Dir(alpha) per client.

    The clients take turns. In its turn, a client draws a class from its mix, among the
    classes that have rows left, and takes one row of this class. The first clients get one
    more row where the rows do not divide equally.
    """

    NAME: ClassVar[str] = "dirichlet-client"

    dirichlet_client_alpha: float = key(
        default=1.0,
        help="evenness of a client's mix; to 0 one class each, large is iid",
        above=0,
    )

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        pools = [rng.permutation(rows) for rows in _rows_by_class(samples.train_labels)]
        left = np.array([len(pool) for pool in pools])
        mixes = rng.dirichlet(np.full(len(pools), self.dirichlet_client_alpha), num_clients)
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


class Pathological(Division):
    """Exactly so many classes per client, every row used.

    Each client in turn takes the classes that fewest clients hold so far, ties at random.
    The rows of a class are divided equally among its holders, whose numbers differ by at
    most one between classes.
    """

    NAME: ClassVar[str] = "pathological"

    classes_per_client: int = key(
        default=2, help="classes that each client holds", minimum=1
    )

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        per_client = self.classes_per_client
        rows_of = _rows_by_class(samples.train_labels)
        num_classes = len(rows_of)
        if per_client > num_classes or num_clients * per_client < num_classes:
            raise DataError(
                f"partitioner pathological: num-clients = {num_clients} with classes-per-"
                f"client = {per_client} cannot hold exactly {num_classes} classes"
            )
        holders: list[list[int]] = [[] for _ in range(num_classes)]
        for client in range(num_clients):
            held = np.array([len(clients) for clients in holders])
            for chosen in np.lexsort((rng.random(num_classes), held))[:per_client]:
                holders[chosen].append(client)
        train: list[list[IntArray]] = [[] for _ in range(num_clients)]
        for rows, clients in zip(rows_of, holders, strict=True):
            if len(clients) > len(rows):
                raise DataError(
                    f"partitioner pathological: num-clients = {num_clients} with "
                    f"classes-per-client = {per_client} puts {len(clients)} clients on a "
                    f"class of {len(rows)} training rows"
                )
            pieces = np.array_split(rng.permutation(rows), len(clients))
            for client, piece in zip(rng.permutation(clients), pieces, strict=True):
                train[client].append(piece)
        return _with_matching_test(samples, [np.concatenate(t) for t in train], rng)


class ClassCount(Division):
    """The first ``k`` classes for client ``k`` (from 1), and equal sizes.

    Each client holds its classes in equal numbers (to within one row). The size is the
    largest that the scarcest class allows. Unused rows are mostly of the last classes.
    """

    NAME: ClassVar[str] = "class-count"
    EXHAUSTIVE: ClassVar[bool] = False

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        classes = np.unique(samples.train_labels)
        if num_clients > len(classes):
            raise DataError(
                f"partitioner class-count: num-clients = {num_clients} is more than the "
                f"{len(classes)} classes, of which client k holds k"
            )
        parts = []
        for labels in (samples.train_labels, samples.test_labels):
            rows_of = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
            counts = _class_count_quotas(
                np.array([len(rows) for rows in rows_of]), num_clients
            )
            pieces = [cut(rows, c) for rows, c in zip(rows_of, counts, strict=True)]
            parts.append(tuple(np.concatenate(held) for held in zip(*pieces, strict=True)))
        if min(map(len, parts[0])) < num_clients:
            raise DataError(
                f"partitioner class-count: {len(samples.train_labels)} training rows are "
                f"too few for num-clients = {num_clients} clients that hold 1 to "
                f"{num_clients} classes"
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


class NaturalId(Division):
    """Rows by their natural owner: person, hospital, state."""

    NAME: ClassVar[str] = "natural-id"
    EXHAUSTIVE: ClassVar[bool] = False
    BY_CLASS: ClassVar[bool] = False

    natural_ids: Literal["group", "sample", "largest", "each"] = key(
        default="group",
        help="group deals all owners to the clients; sample draws one owner per client; "
        "largest: one owner per client, in order of size; each: one, in order of name, "
        "those too that have no row to train on, or none to test on",
    )
    natural_min_size: int = key(
        default=1, help="owners with fewer rows are left out; 1 keeps all", minimum=1
    )

    @property
    @override
    def may_lack_a_part(self) -> bool:
        return self.natural_ids == "each"

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        if samples.train_ids is None or samples.test_ids is None:
            raise DataError(
                "partitioner natural-id: this data set names no owner of its rows; use one "
                "that does, such as femnist, or another partitioner"
            )
        sizes = np.bincount(np.concatenate([samples.train_ids, samples.test_ids]))
        usable = (sizes >= self.natural_min_size) & (sizes > 0)
        if self.natural_ids not in ("group", "each"):
            usable[np.setdiff1d(np.arange(len(sizes)), samples.train_ids)] = False
            if len(samples.test_ids):
                usable[np.setdiff1d(np.arange(len(sizes)), samples.test_ids)] = False
        owners = np.flatnonzero(usable)
        if self.natural_ids == "largest":
            owners = owners[np.argsort(-sizes[owners], kind="stable")]
        elif self.natural_ids != "each":
            owners = rng.permutation(owners)
        if num_clients > len(owners):
            raise DataError(
                f"partitioner natural-id: num-clients = {num_clients} is more than the "
                f"{len(owners)} owners with natural-min-size = {self.natural_min_size} rows"
            )
        grouped = self.natural_ids == "group"
        groups = np.array_split(owners, num_clients if grouped else len(owners))
        client_of = np.full(len(sizes), -1)
        for client, group in enumerate(groups[:num_clients]):
            client_of[group] = client
        train, test = (
            tuple(_rows_by_class(client_of[ids], num_clients))
            for ids in (samples.train_ids, samples.test_ids)
        )
        of_clients = () if grouped else tuple(owners[:num_clients].tolist())
        return Partition(train, test, owners=of_clients)


def match_test(
    samples: Samples, train: Sequence[IntArray], rng: Generator
) -> tuple[IntArray, ...]:
    """Divide the test part in the class mixes of the clients' training rows.

    Each class is divided in proportion to the clients' training rows of the class, rounded
    down or up. Rows left over go to the clients that lack most of their share of all
    classes so far, so that the clients' sizes come out right too. A class without training
    rows is divided in proportion to the clients' sizes.
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
    samples: Samples, train: Sequence[IntArray], rng: Generator
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
