"""A small quadratic programme over weights that are >= 0 and sum to 1."""

import numpy as np

from fedsuite.method import Vector


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
