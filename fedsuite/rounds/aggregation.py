"""Means over clients, as pure functions and one streaming accumulator."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.messages.records import Arrays
from fedsuite.messages.statistics import is_statistic

_BLOCK = 1 << 15


class WeightedMean:
    """Weighted mean of named arrays, taken in one at a time.

    Sums are kept in float64, so memory does not grow with the number of clients. The
    mean has the dtypes of the first arrays added; integer arrays (counters of batch
    normalisation) get the mean rounded to the nearest whole number.
    """

    def __init__(self) -> None:
        self._sums: Arrays = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self.total_weight = 0.0

    def add(self, arrays: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Take in one client's arrays.

        Parameters
        ----------
        arrays
            The same names and shapes at each call.
        weight
            Finite and not negative; 0 leaves the mean as it is.

        Raises
        ------
        ValueError
            If the weight is negative or not finite.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight {weight} is not a finite number >= 0")
        if not self._sums:
            self._dtypes = {name: array.dtype for name, array in arrays.items()}
            self._sums = {name: np.zeros(a.shape) for name, a in arrays.items()}
        if weight == 0:
            return
        for name, array in arrays.items():
            _add_multiple(self._sums[name], array, weight)
        self.total_weight += weight

    def take_back(self, arrays: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Lower the weight of arrays that were added, by at most what it was."""
        for name, array in arrays.items():
            _add_multiple(self._sums[name], array, -weight)
        self.total_weight -= weight

    def result(self) -> Arrays | None:
        """Return the mean, or None if no weight was added."""
        if self.total_weight == 0:
            return None
        return {
            name: _quotient(total, self.total_weight, self._dtypes[name])
            for name, total in self._sums.items()
        }


def _blocks(size: int) -> Iterator[slice]:
    """Yield slices that cover so many entries: what is made of one stays in the cache."""
    for start in range(0, size, _BLOCK):
        yield slice(start, min(start + _BLOCK, size))


def _add_multiple(total: NDArray[np.float64], array: NDArray[Any], weight: float) -> None:
    """Add a multiple of an array to a sum, with no array of its size in between."""
    sums, added = total.reshape(-1), array.reshape(-1)
    for block in _blocks(added.size):
        # Converted first: a product of two dtypes goes through small buffers of NumPy's.
        part = added[block].astype(np.float64)
        part *= weight
        sums[block] += part


def _quotient(
    total: NDArray[np.float64], divisor: float, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return a sum divided, in another dtype."""
    result = np.empty(total.shape, dtype)
    flat, sums = result.reshape(-1), total.reshape(-1)
    for block in _blocks(sums.size):
        flat[block] = cast_like(sums[block] / divisor, dtype)
    return result


def cast_like(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return float64 values in another dtype, rounding to nearest for integer dtypes."""
    rounded = np.rint(values) if dtype.kind in "biu" else values
    # NumPy's arithmetic turns arrays without axes into scalars; these are arrays again.
    return np.asarray(rounded).astype(dtype)


def weighted_mean(
    arrays: Iterable[Mapping[str, NDArray[Any]]], weights: Iterable[float]
) -> Arrays | None:
    """Return the weighted mean of named arrays, or None if the weights sum to 0."""
    mean = WeightedMean()
    for named, weight in zip(arrays, weights, strict=True):
        mean.add(named, weight)
    return mean.result()


def weighted_sum(
    arrays: Iterable[Mapping[str, NDArray[Any]]],
    weights: Sequence[float] | NDArray[np.float64],
) -> Arrays:
    """Return sum_i w_i a_i in float64, in the order given; the weights need not sum to 1.

    Parameters
    ----------
    arrays
        The same names and shapes each time; taken one at a time.
    weights
        One finite number for each.
    """
    sums: Arrays = {}
    for named, weight in zip(arrays, weights, strict=True):
        for name, array in named.items():
            term = np.multiply(array, weight, dtype=np.float64)
            sums[name] = sums[name] + term if name in sums else term
    return sums


def update_of(arrays: Mapping[str, NDArray[Any]], model: Mapping[str, Any]) -> Arrays:
    """Return ``model - arrays`` in float64: the update that a client made."""
    return {
        name: np.subtract(model[name], array, dtype=np.float64)
        for name, array in arrays.items()
    }


def apply_update(arrays: Mapping[str, NDArray[Any]], update: Arrays, rate: float) -> Arrays:
    """Return ``arrays + rate * update`` in the dtypes of ``arrays``.

    Statistics take the whole update whatever the rate, rounded to the nearest whole number
    where they are integers.
    """
    return {
        name: cast_like(
            array + (1.0 if is_statistic(name, array) else rate) * update[name], array.dtype
        )
        for name, array in arrays.items()
    }


def step_towards(arrays: Mapping[str, NDArray[Any]], target: Arrays, rate: float) -> Arrays:
    """Return ``arrays + rate * (target - arrays)``; at rate 1 the target, bit for bit.

    Statistics are the target's at any rate: extrapolated, a variance may turn negative.
    """
    if rate == 1.0:
        return target
    moved = apply_update(arrays, update_of(arrays, target), rate)
    return {n: target[n] if is_statistic(n, a) else a for n, a in moved.items()}


def mean_metrics(rows: Iterable[Mapping[str, float]], weight_key: str) -> dict[str, float]:
    """Return the weighted mean of each metric that every row has.

    A weight sum of 0 gives the plain mean; the weight itself is summed, not averaged.
    """
    rows = list(rows)
    if not rows:
        return {}
    weights = np.array([row[weight_key] for row in rows], dtype=np.float64)
    if weights.sum() == 0:
        weights = np.ones(len(rows))
    # Shares, so that a mean of finite numbers is finite.
    shares = weights / weights.sum()
    shared = [key for key in rows[0] if all(key in row for row in rows)]
    # Rounded once, so that the order of the clients is in no bit, nor BLAS's threads.
    means = {
        key: math.fsum(row[key] * share for row, share in zip(rows, shares, strict=True))
        for key in shared
        if key != weight_key
    }
    return {**means, weight_key: float(sum(row[weight_key] for row in rows))}
