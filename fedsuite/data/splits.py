"""Division of a data set's rows into training, test, validation and public part."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError
from fedsuite.core.rng import numpy_stream
from fedsuite.data.specs import IntArray, RawData

_SPLIT_SEED = 0  # of the split that all seeds of an experiment share


@dataclass(frozen=True)
class Parts:
    """Rows of a data set by purpose, ascending unless said otherwise.

    Parameters
    ----------
    train
        Divided among the clients to train on.
    client_test
        Divided among the clients to be tested on.
    test
        The global test set. The same rows as ``client_test``, unless the latter were split
        off the training part; then no client holds these rows.
    validation
        Kept by the server; no client holds these rows.
    public
        Known to all without their labels; no client holds these rows. In the order of the
        draw: a smaller ``public-size`` draws the first of these rows.
    drawn_anew
        Whether another seed has another split.
    """

    train: IntArray
    client_test: IntArray
    test: IntArray
    validation: IntArray
    public: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    drawn_anew: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the data set's own training and test part are all there is."""
        held_out = len(self.validation) + len(self.public) + self.drawn_anew
        return not held_out and np.array_equal(self.client_test, self.test)


def split_parts(
    raw: RawData,
    test_fraction: float,
    client_test_fraction: float = 0.0,
    validation_fraction: float = 0.0,
    public_size: int = 0,
    fresh_seed: int | None = None,
) -> Parts:
    """Split a data set by the experiment's keys.

    See :class:`~fedsuite.data.data_settings.DataSettings`; ``validation_fraction`` is the
    key ``server-validation-fraction``. ``fresh_seed`` draws all parts anew, as the key
    ``fresh-test-split`` does; None has them the same for all seeds.
    """
    seed = _SPLIT_SEED if fresh_seed is None else fresh_seed
    if fresh_seed is not None and raw.num_train is not None:
        test_fraction = 1 - raw.num_train / len(raw.labels)
        raw = replace(raw, num_train=None)
    train, test = split_rows(raw, test_fraction, seed)
    train, validation = _hold_out(raw, train, validation_fraction, "validation-split", seed)
    client_test = test
    if client_test_fraction:
        # Both shares are of the whole training part.
        rest = client_test_fraction / (1 - validation_fraction)
        train, client_test = _hold_out(raw, train, rest, "client-test-split", seed)
    # Public rows are drawn last, so that they move no row of the other parts held out.
    public = np.empty(0, np.int64)
    if public_size:
        train, public = draw_public(raw, train, public_size, seed)
    return Parts(train, client_test, test, validation, public, fresh_seed is not None)


def draw_public(
    raw: RawData, rows: IntArray, size: int, seed: int = _SPLIT_SEED
) -> tuple[IntArray, IntArray]:
    """Return the rows that stay, and ``size`` public ones in the order of the draw.

    The draw is uniform, whatever the labels. Groups are drawn instead of rows where rows
    belong to groups. Nobody uses the surplus rows of the last group drawn, because a group
    is never both public and private.
    """
    groups = rows if raw.groups is None else raw.groups[rows]
    names, group_of = np.unique(groups, return_inverse=True)
    place = numpy_stream(seed, "public-split").permutation(len(names))[group_of]
    order = np.argsort(place, kind="stable")
    drawn = order[:size]
    is_private = ~np.isin(place, place[drawn])
    if not is_private.any():
        raise DataError(
            f"key public-size = {size}: {len(rows)} training rows are left to draw from, "
            "and some must stay for the clients; ask for fewer"
        )
    return rows[is_private], rows[drawn]


def split_rows(
    raw: RawData, test_fraction: float, seed: int = _SPLIT_SEED
) -> tuple[IntArray, IntArray]:
    """Return the rows of the training part and of the test part, ascending.

    A published split is returned as it is. Otherwise a random ``test_fraction`` of
    each stratum is the test part. Strata are the data set's own, or else the natural
    owners, or else the classes. A stratum of two or more rows has a row in each part.
    Where rows belong to groups, groups are drawn, each in the stratum of its first row.
    """
    num_rows = len(raw.labels)
    if raw.num_train is not None:
        return np.arange(raw.num_train), np.arange(raw.num_train, num_rows)
    return _hold_out(raw, np.arange(num_rows), test_fraction, "split", seed)


def _classes(raw: RawData) -> IntArray:
    """Return the class of each row, one for all where rows have none."""
    return raw.labels if raw.by_class else np.zeros(len(raw.labels), np.int64)


def _hold_out(
    raw: RawData, rows: IntArray, share: float, purpose: str, seed: int
) -> tuple[IntArray, IntArray]:
    """Split rows into those that stay and a random share, without dividing a group."""
    if share == 0:
        return rows, np.empty(0, np.int64)
    strata = raw.strata
    if strata is None:
        strata = _classes(raw) if raw.ids is None else raw.ids
    strata = strata[rows]
    if raw.groups is None:
        is_out = _draw(strata, share, purpose, seed)
    else:
        groups = raw.groups[rows]
        first, group_of = np.unique(groups, return_index=True, return_inverse=True)[1:]
        is_out = _draw(strata[first], share, purpose, seed)[group_of]
    return rows[~is_out], rows[is_out]


def _draw(strata: IntArray, share: float, purpose: str, seed: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the entries drawn, the same share of each stratum."""
    shuffled = numpy_stream(seed, purpose).permutation(len(strata))
    numbers = strata[shuffled]
    order = shuffled[np.argsort(numbers, kind="stable")]
    is_drawn: npt.NDArray[np.bool_] = np.zeros(len(strata), np.bool_)
    for part in np.split(order, np.cumsum(np.bincount(numbers))[:-1]):
        size = min(max(round(share * len(part)), 1), len(part) - 1)
        is_drawn[part[: max(size, 0)]] = True
    return is_drawn
