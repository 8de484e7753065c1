"""Validation rows of clients, drawn from their training rows.

Models are chosen by these rows, and by no row of the test part: see the key
``client-validation-fraction``.

Rows of one group (a patient, a comment) are drawn together. A row that a partitioner gives
to several clients, or to one client several times, is a group too. Each client draws from
groups that it alone holds. A group of several clients is drawn for all of them at once: no
client validates on what another one trains on.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedsuite.core.rng import numpy_stream
from fedsuite.data.division import Partition
from fedsuite.data.specs import IntArray

_PURPOSE = "client-validation"
_SHARED = "shared-client-validation"

Mask = npt.NDArray[np.bool_]


def hold_out_validation(
    partition: Partition,
    labels: IntArray,
    groups: IntArray | None,
    fraction: float,
    seed: int,
) -> Partition:
    """Return a partition whose clients keep some of their training rows to validate on.

    Parameters
    ----------
    partition
        Partition without validation rows.
    labels, groups, fraction, seed
        As :func:`validation_masks` takes them.
    """
    masks = validation_masks(partition.train, labels, groups, fraction, seed)
    pairs = list(zip(partition.train, masks, strict=True))
    return replace(
        partition,
        train=tuple(rows[~mask] for rows, mask in pairs),
        validation=tuple(rows[mask] for rows, mask in pairs),
    )


def validation_masks(
    clients: Sequence[IntArray],
    labels: IntArray,
    groups: IntArray | None,
    fraction: float,
    seed: int,
) -> list[Mask]:
    """Return for each client which of its training rows are for validation.

    A client with two groups or more keeps one to train on, at least. It has one to validate
    on, at least, unless other clients hold all its groups too.

    Parameters
    ----------
    clients
        Positions of each client's training rows.
    labels
        Class of each position; of sequences ``[rows, length]``, and of float32, which have
        no class.
    groups
        Group of each position, which is never divided; None for rows without groups.
    fraction
        Share of the groups to draw, ``0 < fraction < 1``.
    seed
        Seed of the experiment, which decides the partition too.
    """
    by_class = labels.ndim == 1 and labels.dtype.kind in "iu"
    strata = labels if by_class else np.zeros(len(labels), np.int64)
    group_of = np.arange(len(labels)) if groups is None else groups
    numbers, first = np.unique(group_of, return_index=True)
    stratum_of = strata[first]
    held = [np.unique(np.searchsorted(numbers, group_of[rows])) for rows in clients]
    is_shared = np.bincount(np.concatenate(held), minlength=len(numbers)) > 1
    is_out = _draw_shared(held, is_shared, stratum_of, fraction, seed)
    for client_id, names in enumerate(held):
        own = names[~is_shared[names]]
        has_one = bool(is_out[names].any())
        stays = int((~is_out[names]).sum()) - len(own)
        rng = numpy_stream(seed, _PURPOSE, 0, client_id)
        is_out[own] = draw(
            stratum_of[own], fraction, rng, needs_one=not has_one, one_stays=stays == 0
        )
    return [is_out[np.searchsorted(numbers, group_of[rows])] for rows in clients]


def _draw_shared(
    held: Sequence[IntArray],
    is_shared: Mask,
    stratum_of: IntArray,
    fraction: float,
    seed: int,
) -> Mask:
    """Return which groups are drawn among those of several clients."""
    is_out: Mask = np.zeros(len(is_shared), np.bool_)
    shared = np.flatnonzero(is_shared)
    rng = numpy_stream(seed, _SHARED)
    is_out[shared] = draw(
        stratum_of[shared], fraction, rng, needs_one=False, one_stays=False
    )
    for names in held:
        if len(names) and is_out[names].all():
            # The client would have nothing to train on.
            is_out[names[0]] = False
    return is_out


def draw(
    strata: IntArray,
    fraction: float,
    rng: np.random.Generator,
    *,
    needs_one: bool,
    one_stays: bool,
) -> Mask:
    """Return a mask of the entries drawn, about the same share of each stratum.

    The entries are put in order of their strata, in random order within each. Every n-th
    is drawn, from a random first one. So each entry is as likely as the others, and the
    number drawn of a stratum is its share rounded down or up. A stratum keeps one entry at
    least. One of a single entry keeps it, unless all strata have a single one.

    Parameters
    ----------
    needs_one, one_stays
        Whether one entry at least is to be drawn, and one to stay.
    """
    is_drawn: Mask = np.zeros(len(strata), np.bool_)
    counts = np.unique(strata, return_inverse=True, return_counts=True)
    size_of = counts[2][counts[1]]
    eligible = np.flatnonzero(size_of > 1)
    if not len(eligible):
        eligible = np.arange(len(strata))
    least = int(needs_one and len(strata) > one_stays)
    size = min(max(round(fraction * len(strata)), least), len(eligible))
    if size == 0:
        return is_drawn
    shuffled = rng.permutation(eligible)
    order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    steps = (rng.random() + np.arange(size)) * (len(order) / size)
    is_drawn[order[np.minimum(steps.astype(np.int64), len(order) - 1)]] = True
    for stratum in np.unique(strata[size_of > 1]):
        part = order[strata[order] == stratum]
        if is_drawn[part].all():
            is_drawn[part[0]] = False
    if one_stays and is_drawn.all():
        is_drawn[order[0]] = False
    return is_drawn
