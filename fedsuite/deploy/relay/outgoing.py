"""What a site's policy does to arrays on their way out: clip, add noise, send a share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.vectors import norm
from fedsuite.deploy.relay.policy import Change

Array = NDArray[Any]
Place = tuple[str, str]
"""Names of a record and of an array in it."""


@dataclass(frozen=True)
class Bounded:
    """Arrays as they leave.

    Parameters
    ----------
    arrays
        Values by place.
    norm
        L2 length of the change against the question, as the app made it.
    norm_left
        Its length as it leaves, noise included.
    """

    arrays: Mapping[Place, Array]
    norm: float
    norm_left: float


def clip(change: Sequence[NDArray[np.float64]], bound: float) -> list[NDArray[np.float64]]:
    """Scale a change down to a length.

    Parameters
    ----------
    change
        Differences, of any shapes; they are taken as one vector.
    bound
        Longest L2 length; 0 leaves the change as it is.

    Returns
    -------
    list of ndarray
        The change times min(1, bound / length).
    """
    length = norm(*change)
    factor = bound / length if 0 < bound < length else 1.0
    return [part * factor for part in change]


def keep_largest(
    change: Sequence[NDArray[np.float64]], share: float
) -> list[NDArray[np.float64]]:
    """Set all but the largest entries of a change to 0.

    Parameters
    ----------
    change
        Differences, taken as one vector.
    share
        Share of the entries to keep, above 0; at least one stays. 1 keeps all.
    """
    sizes = [np.abs(part).ravel() for part in change]
    together = np.concatenate(sizes) if sizes else np.zeros(0)
    count = max(round(share * together.size), 1)
    if count >= together.size:
        return list(change)
    # A stable order: of equal entries the first ones stay, so that the count holds.
    kept = np.zeros(together.size, dtype=bool)
    kept[np.argsort(-together, kind="stable")[:count]] = True
    result, start = [], 0
    for part in change:
        mask = kept[start : start + part.size].reshape(part.shape)
        result.append(np.where(mask, part, 0.0))
        start += part.size
    return result


def bounded(
    values: Mapping[Place, Array],
    asked: Mapping[Place, Array],
    rule: Change,
    random: np.random.Generator,
) -> Bounded:
    """Return a reply's arrays as they may leave.

    Parameters
    ----------
    values
        The reply's arrays.
    asked
        For each place the array of the question that it changes, where there is one.
    rule
        What to do. With noise, whole numbers keep the question's values.
    random
        Source of the noise.
    """
    places = [p for p in values if p in asked and values[p].dtype.kind == "f"]
    if not (rule.clip_norm or rule.largest_share < 1):
        # One array after the other: a model's doubles would fill the memory.
        lengths = (norm(values[p].astype(np.float64) - asked[p]) for p in places)
        whole = math.hypot(*lengths)
        return Bounded(dict(values), whole, whole)
    before = [asked[place].astype(np.float64) for place in places]
    change = [
        values[place].astype(np.float64) - old
        for place, old in zip(places, before, strict=True)
    ]
    made = norm(*change)
    change = keep_largest(clip(change, rule.clip_norm), rule.largest_share)
    if rule.noise_multiplier:
        scale = rule.noise_multiplier * rule.clip_norm
        change = [part + random.normal(0.0, scale, part.shape) for part in change]
    left = dict(values)
    for place, old, part in zip(places, before, change, strict=True):
        left[place] = np.asarray(old + part).astype(values[place].dtype)
    if rule.noise_multiplier:
        left |= {p: asked[p] for p in values if p in asked and p not in places}
    return Bounded(left, made, norm(*change))
