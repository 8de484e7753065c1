"""Dense and factored networks in one space, their filters."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import Arrays
from fedsuite.models.decomposed import DecomposedConv2d
from fedsuite.strategies.decomposition.product_average import multiply


class DenseSpace:
    """A network's filters from its arrays; a factored network has its dense original's."""

    def __init__(self, model: nn.Module) -> None:
        modules = dict(model.named_modules())
        self._factored = [n for n, m in modules.items() if isinstance(m, DecomposedConv2d)]
        self._filters = [
            _joined(name, "weight")
            for name, module in modules.items()
            if isinstance(module, nn.Conv2d | DecomposedConv2d)
        ]

    @property
    def is_factored(self) -> bool:
        """Whether any convolution is factored."""
        return bool(self._factored)

    def dense(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return a network's arrays with filters (float64) in place of factors."""
        dense = dict(arrays)
        for name in self._factored:
            atoms = dense.pop(_joined(name, "atoms"))
            coefficients = dense.pop(_joined(name, "coefficients"))
            dense[_joined(name, "weight")] = multiply(coefficients, atoms)
        return dense

    def filters(self, arrays: Mapping[str, NDArray[Any]]) -> Vector:
        """Return the concatenated filters of all convolutions, of which one must be."""
        if not self._filters:
            raise ConfigError(
                "the model has no convolutions, and this analysis needs their filters: "
                "choose another model, such as cnn"
            )
        dense = self.dense(arrays)
        return flat(dense[name] for name in self._filters)


def flat(arrays: Iterable[NDArray[Any]]) -> Vector:
    """Return arrays as one vector, float64."""
    vector: Vector = np.concatenate([a.ravel() for a in arrays], dtype=np.float64)
    return vector


class Spread:
    """Running mean and population variance of vectors."""

    def __init__(self) -> None:
        self.count = 0
        self._mean = np.zeros(0)
        self._squares = 0.0

    def add(self, vector: Vector) -> None:
        """Add one vector; all have the same length."""
        if self.count == 0:
            self._mean = np.zeros_like(vector)
        self.count += 1
        difference = vector - self._mean
        self._mean += difference / self.count
        self._squares += float(difference @ (vector - self._mean))

    @property
    def mean(self) -> Vector:
        """Mean of the vectors; at least one must have come."""
        return self._mean

    @property
    def variance(self) -> float:
        """Mean of ||x - mean||^2 over the vectors."""
        return self._squares / self.count


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
