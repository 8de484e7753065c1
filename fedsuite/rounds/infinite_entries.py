"""Entries of a model that are infinite when it is sent, such as those of a causal mask.

No equation of a method can take them: infinity minus infinity is no number. So a method
sees 0 in their place, in what it sends and in what comes back. They are put back into each
message, and into the new model unless all clients sent numbers instead.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.messages.records import (
    ARRAYS,
    PLAIN_MEAN,
    STATISTICS,
    Arrays,
    is_model_record,
)

_OF_ONE_NETWORK = re.compile(r"[0-9]+/")
_MODELS = (ARRAYS, PLAIN_MEAN, STATISTICS, "head")
"""Records of messages with a model or a part of one, beside those of several models."""

Mask = NDArray[np.bool_]


class InfiniteEntries:
    """The infinite entries of the arrays that are sent.

    Parameters
    ----------
    arrays
        The global arrays.

    Attributes
    ----------
    holding_nan
        Arrays with an entry that is no number at all.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._own: dict[str, NDArray[Any]] = {}
        self._some_held: dict[str, Mask] = {}
        self.holding_nan: set[str] = set()
        for name, array in arrays.items():
            if all_finite(array):
                continue
            if np.isnan(array).any():
                self.holding_nan.add(name)
            self._own[name] = array
            # Messages of one network have its own names.
            self._own.setdefault(_OF_ONE_NETWORK.sub("", name, count=1), array)

    def without(self, arrays: Arrays) -> Arrays:
        """Return the arrays with 0 in place of infinite entries."""
        held = ((name, array, self.held(name, array)) for name, array in arrays.items())
        return {n: a if mask is None else cleared(a, mask) for n, a, mask in held}

    def held(self, name: str, array: NDArray[Any]) -> Mask | None:
        """Return where an array has the infinities that were sent; None if none were."""
        own = self._sent(name, array)
        if own is None:
            return None
        held: Mask = np.isinf(own) & (own == array)
        return held

    def note(self, held: Mapping[str, Mask]) -> None:
        """Hear where a reply to a training message has the infinities still."""
        for name, mask in held.items():
            known = self._some_held.get(name)
            self._some_held[name] = mask if known is None else known | mask

    def put_back(self, arrays: Arrays) -> Arrays:
        """Return the arrays with their infinite entries."""
        return {name: self._restored(name, array, {}) for name, array in arrays.items()}

    def of_new_model(self, arrays: Arrays) -> Arrays:
        """Return the new global arrays with the infinite entries that some client has."""
        held, self._some_held = self._some_held, {}
        return {name: self._restored(name, a, held) for name, a in arrays.items()}

    def records(self, records: Mapping[str, Arrays]) -> dict[str, Arrays]:
        """Return the records of a message with the infinite entries of its models."""
        return {
            name: self.put_back(arrays)
            if name in _MODELS or is_model_record(name)
            else arrays
            for name, arrays in records.items()
        }

    def _sent(self, name: str, like: NDArray[Any]) -> NDArray[Any] | None:
        own = self._own.get(name)
        return own if own is not None and own.shape == like.shape else None

    def _restored(
        self, name: str, array: NDArray[Any], held: Mapping[str, Mask]
    ) -> NDArray[Any]:
        own = self._sent(name, array)
        if own is None:
            return array
        infinite = np.isinf(own) & held.get(name, np.True_)
        return np.where(infinite, own, array).astype(array.dtype)


def cleared(array: NDArray[Any], mask: Mask) -> NDArray[Any]:
    """Return an array with 0 in some places, read-only."""
    finite = np.where(mask, array.dtype.type(0), array)
    finite.flags.writeable = False
    return finite


def all_finite(array: NDArray[Any]) -> bool:
    """Return whether an array holds neither NaN nor infinity."""
    if array.dtype.kind != "f" or array.size == 0:
        return True
    # A finite sum of squares proves finite entries in one pass without a mask; only
    # an overflowing one needs the slow look.
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(flat, flat))
    return bool(np.isfinite(square)) or bool(np.isfinite(flat).all())
