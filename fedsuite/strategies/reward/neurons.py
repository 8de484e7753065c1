"""Neurons of a network: their layers, the masks of submodels, and means over clients.

A neuron is a row of a hidden layer's matrix, or an output channel of a convolution, with
its bias and its entries of a normalisation layer behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.method import Arrays, Vector, cast_like
from fedsuite.models.groups import ParameterGroups

WHOLE = 100.0
"""Importance of all neurons together."""

TOLERANCE = 1e-6
"""Rounding by which a sum of importance may pass its limit."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class NeuronLayer:
    """A layer whose neurons can be left out: arrays with one row per neuron."""

    names: tuple[str, ...]
    size: int


def hidden_layers(groups: ParameterGroups, arrays: Arrays) -> list[NeuronLayer]:
    """Return the layers with one matrix or kernel, without the head, from the input up."""
    layers = []
    for names in groups.layers:
        known = [name for name in names if name in arrays]
        matrices = [name for name in known if arrays[name].ndim > 1]
        if len(matrices) != 1 or set(known) & set(groups.head):
            continue
        size = arrays[matrices[0]].shape[0]
        behind = known[known.index(matrices[0]) :]
        rows = [n for n in behind if arrays[n].ndim and arrays[n].shape[0] == size]
        layers.append(NeuronLayer(tuple(rows), size))
    return layers


def masks_of(layers: Sequence[NeuronLayer], held: Mask) -> dict[str, Mask]:
    """Return the held rows by array name; ``held`` has one entry per neuron."""
    parts = np.split(held, np.cumsum([layer.size for layer in layers])[:-1])
    return {
        name: part
        for layer, part in zip(layers, parts, strict=True)
        for name in layer.names
    }


def masked(array: NDArray[Any], rows: Mask) -> NDArray[Any]:
    """Return an array whose other rows are 0."""
    return np.where(rows.reshape(-1, *[1] * (array.ndim - 1)), array, 0).astype(array.dtype)


def submodel(arrays: Arrays, masks: Mapping[str, Mask]) -> Arrays:
    """Return a model in which the rows that a mask leaves out are 0."""
    return {n: masked(a, masks[n]) if n in masks else a for n, a in arrays.items()}


def scaled_importance(losses: Vector, loss: float) -> Vector:
    """Return I_v, which sum to 100, from the losses without each neuron.

    ``loss`` is the whole model's. A neuron whose loss is not finite counts as useless.
    """
    rise = np.subtract(losses, loss, where=np.isfinite(losses), out=np.zeros(losses.shape))
    importance = np.maximum(np.nan_to_num(rise, posinf=0.0, neginf=0.0), 0.0)
    if importance.sum() <= 0:
        importance = np.ones(losses.shape)
    scaled: Vector = WHOLE * importance / importance.sum()
    return scaled


def held_neurons(importance: Vector, limit: float) -> Mask:
    """Return which neurons fit, the least important first, ties by number.

    ``limit`` is the largest sum of importance held: 100 holds all.
    """
    order = np.argsort(importance, kind="stable")
    fits = np.cumsum(importance[order]) <= limit + TOLERANCE
    held = np.zeros(importance.shape, dtype=np.bool_)
    held[order[fits]] = True
    return held


class HeldMean:
    """Mean of arrays, of each row over the clients that held it."""

    def __init__(self) -> None:
        self._sums: dict[str, Vector] = {}
        self._counts: dict[str, Vector] = {}

    def add(self, arrays: Arrays, masks: Mapping[str, Mask]) -> None:
        """Take in the masked arrays of one client."""
        for name, mask in masks.items():
            rows = masked(arrays[name], mask).astype(np.float64)
            self._sums[name] = self._sums.get(name, 0.0) + rows
            self._counts[name] = self._counts.get(name, 0.0) + mask.astype(np.float64)

    def result(self, old: Arrays) -> Arrays:
        """Return the means; rows that nobody held are the old ones."""
        new: Arrays = {}
        for name, total in self._sums.items():
            shape = (-1, *[1] * (total.ndim - 1))
            counts = self._counts[name].reshape(shape)
            mean = np.where(counts > 0, total / np.maximum(counts, 1.0), old[name])
            new[name] = cast_like(mean, old[name].dtype)
        return new
