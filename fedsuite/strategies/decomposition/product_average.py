"""Control C1 of filter decomposition: the average of the products of factors.

Averaging factors gives the product of averages, Abar x Dbar, which holds cross terms
A_i x D_j of different clients. This control averages each client's own products instead,

    Xbar = sum_k p_k A_k x D_k,        p_k = n_k / n,

and factors Xbar over the mean atoms. The difference is a covariance over clients,

    Xbar - Abar x Dbar = sum_k p_k (A_k - Abar) x (D_k - Dbar),                      (S1)

and the new coefficients are Abar + (Xbar - Abar x Dbar) pinv(Dbar), in float64. Where the
mean atoms span all filters (rank k^2, so m >= k^2) their product with Dbar is Xbar; with
m = k^2 they are Xbar pinv(Dbar). With more atoms than pixels that formula would also move
coefficients that need no change; ours leaves those as they are.

Mean atoms that barely span the filters make coefficients of any size, from which the next
round starts: the control then measures its own factoring. Reports hold the condition number
of the mean atoms; runs in which it jumps do not count.

A steadier control is a pair of runs in one gauge, which differ by (S1) alone. After each
round both write the layer's filters X, as a matrix of one row per pair of channels, in
balanced factors of their singular value decomposition X = U S V':

    coefficients U sqrt(S), atoms sqrt(S) V'.

``factors-regauged`` takes X = Abar x Dbar, ``products-regauged`` X = Xbar. The factors
follow from X alone, and nothing is inverted. Signs and order of the singular vectors do not
matter to SGD: an orthogonal change of basis turns gradients, decay and norms with it.

Published nowhere, so far as we know.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.method import Arrays, ConfigError

Filters = NDArray[np.float64]


@dataclass(frozen=True)
class FactoredLayer:
    """Names of a layer's atoms (m, height, width) and coefficients (out, in, m)."""

    atoms: str
    coefficients: str

    def filters(self, arrays: Mapping[str, NDArray[Any]]) -> Filters:
        """Return coefficients x atoms (channels out, channels in, height, width)."""
        return multiply(arrays[self.coefficients], arrays[self.atoms])


def multiply(coefficients: NDArray[Any], atoms: NDArray[Any]) -> Filters:
    """Return the filters that factors stand for, in float64."""
    product: Filters = np.tensordot(
        coefficients.astype(np.float64), atoms.astype(np.float64), axes=1
    )
    return product


def refactor(
    filters: Filters, coefficients: NDArray[Any], atoms: NDArray[Any]
) -> NDArray[np.float64]:
    """Return the coefficients nearest to the given ones whose product is ``filters``.

    ``filters`` is (channels out, channels in, height, width). Atoms that do not span all
    filters give the least squared error.
    """
    missing = filters - multiply(coefficients, atoms)
    basis = atoms.astype(np.float64).reshape(len(atoms), -1)
    change = missing.reshape(*missing.shape[:2], -1) @ np.linalg.pinv(basis)
    moved: NDArray[np.float64] = coefficients + change
    return moved


class ProductMean:
    """Weighted mean of clients' products of factors, one client at a time."""

    def __init__(self, layers: Sequence[FactoredLayer]) -> None:
        self._layers = layers
        self._sums: dict[str, Filters] = {}
        self._weight = 0.0

    def add(self, arrays: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Take in one client's model; ``weight`` >= 0, as in the mean of the factors."""
        self._weight += weight
        for layer in self._layers:
            term = weight * layer.filters(arrays)
            known = self._sums.get(layer.coefficients)
            self._sums[layer.coefficients] = term if known is None else known + term

    def result(self) -> dict[str, Filters]:
        """Return each layer's mean by name of its coefficients; empty without weight."""
        if self._weight == 0:
            return {}
        return {name: total / self._weight for name, total in self._sums.items()}


def refactor_model(
    layers: Sequence[FactoredLayer], products: Mapping[str, Filters], arrays: Arrays
) -> Arrays:
    """Return a model whose filters are the mean products, with the atoms that it had."""
    moved = dict(arrays)
    for layer in layers:
        name = layer.coefficients
        new = refactor(products[name], arrays[name], arrays[layer.atoms])
        moved[name] = new.astype(arrays[name].dtype)
    return moved


def balanced_factors(filters: Filters, num_atoms: int) -> tuple[Filters, Filters]:
    """Return coefficients and atoms of equal size whose product is ``filters``.

    The singular values of both are the square roots of the filters'. ``num_atoms`` is at
    least height times width; further atoms and their coefficients are 0.
    """
    rows = filters.reshape(-1, math.prod(filters.shape[2:]))
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    roots = np.sqrt(values)
    coefficients = np.zeros((len(rows), num_atoms))
    coefficients[:, : len(roots)] = left * roots
    atoms = np.zeros((num_atoms, rows.shape[1]))
    atoms[: len(roots)] = roots[:, None] * right
    return (
        coefficients.reshape(*filters.shape[:2], num_atoms),
        atoms.reshape(num_atoms, *filters.shape[2:]),
    )


def regauge_model(
    layers: Sequence[FactoredLayer], filters: Mapping[str, Filters], arrays: Arrays
) -> Arrays:
    """Return a model with other filters, by name of coefficients, in balanced factors."""
    moved = dict(arrays)
    for layer in layers:
        old = arrays[layer.atoms]
        coefficients, atoms = balanced_factors(filters[layer.coefficients], len(old))
        moved[layer.atoms] = atoms.astype(old.dtype)
        moved[layer.coefficients] = coefficients.astype(old.dtype)
    return moved


def cross_term_ratios(
    layers: Sequence[FactoredLayer],
    products: Mapping[str, Filters],
    averaged: Arrays,
    old: Arrays,
    new: Arrays,
) -> dict[str, float]:
    """Return the norm of the covariance (S1) over that of the update of the filters.

    ``cross_term_ratio`` is that of all layers, ``cross_term_ratio_largest`` of one, without
    layers that did not change. ``atoms_condition_largest`` is the largest condition number
    of a layer's mean atoms, if finite.
    """
    terms, updates = [], []
    condition = max(map(_condition, (averaged[layer.atoms] for layer in layers)))
    conditions = {"atoms_condition_largest": condition} if condition < math.inf else {}
    for layer in layers:
        term = products[layer.coefficients] - layer.filters(averaged)
        terms.append(float(np.linalg.norm(term)))
        updates.append(float(np.linalg.norm(layer.filters(new) - layer.filters(old))))
    ratios = [t / u for t, u in zip(terms, updates, strict=True) if u > 0]
    if not ratios:
        return conditions
    return {
        **conditions,
        "cross_term_ratio": math.hypot(*terms) / math.hypot(*updates),
        "cross_term_ratio_largest": max(ratios),
    }


def _condition(atoms: NDArray[Any]) -> float:
    """Return the ratio of the largest to the smallest singular value of atoms."""
    values = np.linalg.svd(
        atoms.astype(np.float64).reshape(len(atoms), -1), compute_uv=False
    )
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf


def check_rank(
    layers: Sequence[FactoredLayer], arrays: Mapping[str, NDArray[Any]], average: str
) -> None:
    """Raise ConfigError at a layer whose atoms cannot express all filters."""
    for layer in layers:
        count, *kernel = arrays[layer.atoms].shape
        if count < math.prod(kernel):
            raise ConfigError(
                f"decomposition-average = {average!r}: {layer.atoms} has {count} atoms of "
                f"{' x '.join(map(str, kernel))}, and needs at least {math.prod(kernel)}: "
                "take a network of 3 x 3 convolutions and atoms >= 9"
            )
