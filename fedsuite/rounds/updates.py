"""Clients' updates as float64 vectors, for methods that need angles and lengths.

Statistics of normalisation layers take no part in any inner product: they are averaged as
in FedAvg. Sums avoid BLAS, whose bits depend on its threads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.aggregation import cast_like, weighted_mean
from fedsuite.rounds.validation import ClientReply


def parameter_names(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the names of the arrays that are trained, statistics left out."""
    return [name for name, array in arrays.items() if not is_statistic(name, array)]


def flatten(arrays: Mapping[str, NDArray[Any]], names: Iterable[str]) -> Vector:
    """Return named arrays as one float64 vector, in the order of the names."""
    parts = [np.asarray(arrays[name], dtype=np.float64).reshape(-1) for name in names]
    return np.concatenate(parts) if parts else np.zeros(0)


def unflatten(vector: NDArray[Any], arrays: Arrays) -> Arrays:
    """Return the parts of a vector by name, in the shapes of the arrays that are trained.

    The inverse of :func:`flatten` over :func:`parameter_names`; the parts are views.
    """
    names = parameter_names(arrays)
    ends = np.cumsum([arrays[name].size for name in names])
    parts = zip(names, np.split(vector, ends[:-1]), strict=False)
    return {name: part.reshape(arrays[name].shape) for name, part in parts}


def client_updates(arrays: Arrays, replies: Sequence[ClientReply]) -> Vector:
    """Return g_k = w_t - w_k of all clients, ``[clients, parameters]``.

    The sign is that of a gradient: the model moves by *minus* a mean of these.
    """
    names = parameter_names(arrays)
    sent = flatten(arrays, names)
    return np.stack([sent - flatten(reply.arrays[ARRAYS], names) for reply in replies])


def take_step(arrays: Arrays, step: Vector, replies: Sequence[ClientReply]) -> Arrays:
    """Return w_t - step, with statistics averaged as FedAvg does.

    Parameters
    ----------
    arrays
        Global arrays that were sent.
    step
        One number a parameter, in the order of :func:`flatten`.
    replies
        Where the statistics come from.
    """
    parts = unflatten(step, arrays)
    moved = {
        name: cast_like(np.asarray(array, dtype=np.float64) - parts[name], array.dtype)
        if name in parts
        else array
        for name, array in arrays.items()
    }
    models = [reply.arrays[ARRAYS] for reply in replies]
    return with_statistics(moved, models, [reply.num_examples for reply in replies])


def with_statistics(
    stepped: Arrays, models: Iterable[Arrays], weights: Iterable[float]
) -> Arrays:
    """Return a model in which statistics are the weighted mean of the clients' ones.

    For rules that step or mix: whatever these make of a variance, it may be negative. They
    stay as they are where no client has weight.

    Parameters
    ----------
    made
        What a rule made of the clients' models.
    models, weights
        The clients' models, and one number >= 0 for each.
    """
    names = set(stepped) - set(parameter_names(stepped))
    if not names:
        return stepped
    parts = ({n: a for n, a in model.items() if n in names} for model in models)
    return {**stepped, **(weighted_mean(parts, weights) or {})}


def inner(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Return the inner product of two vectors, in float64."""
    return float(np.multiply(left, right, dtype=np.float64).sum())
