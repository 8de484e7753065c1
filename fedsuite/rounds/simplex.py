"""Weights that are >= 0 and sum to 1: projection, and small quadratic programmes."""

import numpy as np

from fedsuite.core.vectors import Vector


def project_to_simplex(vector: Vector) -> Vector:
    """Return the nearest point with entries >= 0 that sum to 1.

    Parameters
    ----------
    vector
        ``[n]``, finite, n >= 1.
    """
    # Adding a number to all entries changes nothing; this keeps huge ones exact.
    shifted = vector - vector.max()
    falling = np.sort(shifted)[::-1]
    thresholds = (np.cumsum(falling) - 1.0) / np.arange(1, len(falling) + 1)
    support = int(np.count_nonzero(falling > thresholds))
    projected: Vector = np.maximum(shifted - thresholds[support - 1], 0.0)
    return projected


def minimize_on_simplex(
    matrix: Vector, linear: Vector, start: Vector, low: Vector, high: Vector
) -> Vector:
    """Return the p of least 1/2 p' A p + c' p on the simplex, within bounds.

    Solved by scipy's SLSQP.

    Parameters
    ----------
    matrix
        A, ``[n, n]``, symmetric and positive semi-definite, with entries of order 1.
    linear
        c, ``[n]``.
    start
        Where the solver begins: a point that satisfies all. Where several are least, the
        one that it reaches from there.
    low, high
        Bounds of each entry, within 0 ... 1.

    Returns
    -------
    array
        ``[n]``, within the bounds and of sum 1, both to rounding.
    """
    from scipy.optimize import minimize

    def value(point: Vector) -> float:
        return float((point * (0.5 * (matrix * point).sum(axis=1) + linear)).sum())

    def slope(point: Vector) -> Vector:
        gradient: Vector = (matrix * point).sum(axis=1) + linear
        return gradient

    solution = minimize(
        value,
        start,
        jac=slope,
        bounds=list(zip(low, high, strict=True)),
        constraints={
            "type": "eq",
            "fun": lambda point: point.sum() - 1.0,
            "jac": lambda point: np.ones(len(point)),
        },
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    point: Vector = np.clip(solution.x, low, high)
    return point / float(point.sum())


def least_form_on_simplex(matrix: Vector) -> Vector:
    """Return the p of least p' A p on the simplex.

    With A = L' L it is the b >= 0 of least ||L b||^2 + (sum(b) - 1)^2, divided by its sum:
    a problem that scipy's ``nnls`` solves in finitely many steps. The unknowns are scaled
    to a unit diagonal first, so that one huge entry does not hide the others.

    Parameters
    ----------
    matrix
        A, ``[n, n]``, symmetric and finite; positive semi-definite but for rounding, so
        that negative eigenvalues are taken as 0. Any scale.

    Returns
    -------
    array
        ``[n]``, of sum 1 to rounding. Where several are least, one of them.

    Raises
    ------
    RuntimeError
        If the solver does not come to an end.
    """
    from scipy.optimize import nnls

    count = len(matrix)
    roots = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    scale = 1.0 / np.where(roots > 0, roots, 1.0)
    values, vectors = np.linalg.eigh(matrix * scale * scale[:, np.newaxis])
    rows = np.sqrt(np.maximum(values, 0.0))[:, np.newaxis] * vectors.T
    sums = scale / scale.max()
    target = np.append(np.zeros(count), 1.0)
    solution, _ = nnls(np.vstack([rows, sums]), target, maxiter=100 * count)
    point: Vector = solution * sums
    return point / float(point.sum())


def capped_shares(weights: Vector, largest: float | Vector) -> Vector:
    """Return weights as shares of 1 of which none is above its ``largest``.

    What is cut off goes to the others in proportion, so that the order stays. Where all
    limits of weights above 0 come to less than 1, these get shares in proportion to their
    limits.

    Parameters
    ----------
    weights
        At least one, >= 0, not all 0.
    largest
        Above 0: one limit for all, or one for each. 1 or more is no limit.
    """
    shares: Vector = weights / weights.sum()
    limits = np.broadcast_to(np.asarray(largest, np.float64), shares.shape)
    positive = shares > 0
    whole = limits[positive].sum()
    if whole <= 1:
        return np.where(positive, limits / whole, 0.0)
    fixed = np.zeros(len(shares), dtype=bool)
    scaled = shares
    while (over := (scaled > limits) & ~fixed).any():
        fixed |= over
        rest = 1.0 - limits[fixed].sum()
        scaled = np.where(fixed, limits, shares * (rest / shares[~fixed].sum()))
    return scaled
