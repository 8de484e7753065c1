r"""Means that a few liars cannot move far, as pure functions in float64.

``points`` are the clients' vectors, ``[clients, parameters]``; ``weights`` are one number
above 0 a client, of any sum. f is the number of clients that may lie.

- Weighted median and trimmed mean, by coordinate: D. Yin, Y. Chen, K. Ramchandran,
  P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
  ICML 2018, arXiv:1803.01498.
- Geometric median by Weiszfeld's steps: K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust
  Aggregation for Federated Learning", IEEE TSP 2022, arXiv:1912.13445.
- Multi-Krum: P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning
  with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.
- Nearest-neighbour mixing: Y. Allouah, S. Farhadkhani, R. Guerraoui, N. Gupta, R. Pinot,
  J. Stephan, "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
  AISTATS 2023, arXiv:2302.01772.

Deviations. The papers count all clients alike; here weights enter every mean, and equal
ones give the papers' rules. The geometric median starts from the median by coordinate,
which one far liar does not move, where the paper starts from the mean. Multi-Krum keeps
n - f clients, as is usual; its theorem is for n - f - 2.

Distances are sums of squared differences, never of products: |x|^2 + |y|^2 - 2xy of models
that differ little is rounding. Sums avoid BLAS, whose bits depend on its threads.
"""

import math
from collections.abc import Callable

import numpy as np

from fedsuite.core.vectors import Vector

MOST_STEPS = 64
"""Weiszfeld's steps at most; most rounds need a dozen."""

CLOSE = 1e-9
"""Step, in median distances, at which Weiszfeld's iteration ends."""

SMALL_DISTANCE = 1e-8
"""Least distance that counts, in median distances: the centre may be a client's vector."""

_COLUMNS = 1 << 15


def weighted_median(points: Vector, weights: Vector) -> Vector:
    """Return the median of each coordinate, ``[parameters]``.

    The least value at which half of the weight is reached; where that is half exactly, the
    middle between it and the next.
    """
    return _by_columns(points, lambda part: _median_of(part, weights))


def trimmed_mean(points: Vector, weights: Vector, liars: int) -> Vector:
    """Return each coordinate's mean without its f largest and f smallest values.

    Raises
    ------
    ValueError
        If nothing would be left: n <= 2 f.
    """
    if len(points) <= 2 * liars:
        raise ValueError(f"{len(points)} clients: expected more than 2 x {liars}")
    return _by_columns(points, lambda part: _trimmed(part, weights, liars))


def weiszfeld_step(
    points: Vector, weights: Vector, centre: Vector, small: float = SMALL_DISTANCE
) -> Vector:
    """Return the mean with weights over distances from a centre, ``[parameters]``.

    Distances below ``small`` median distances count as that.
    """
    distances = np.sqrt(squared_lengths(points - centre))
    least = small * _middle(distances)
    if least == 0:
        # Half of the clients or more agree, which makes them the geometric median.
        return centre
    return mean_of(points, weights / np.maximum(distances, least))


def geometric_median(points: Vector, weights: Vector) -> Vector:
    """Return the point of least weighted sum of distances, ``[parameters]``, nearly."""
    centre = weighted_median(points, weights)
    for number in range(MOST_STEPS):
        # A centre that is a client's vector would hold itself: it is let go at first.
        small = max(0.5**number, SMALL_DISTANCE)
        moved = weiszfeld_step(points, weights, centre, small)
        step = float(np.sqrt(np.square(moved - centre).sum()))
        scale = _middle(np.sqrt(squared_lengths(points - moved)))
        centre = moved
        if step <= CLOSE * scale and small == SMALL_DISTANCE:
            break
    return centre


def krum_scores(points: Vector, liars: int) -> Vector:
    """Return each client's sum of squared distances to its n - f - 2 nearest others.

    Raises
    ------
    ValueError
        If n < 2 f + 3.
    """
    count = len(points)
    if count < 2 * liars + 3:
        raise ValueError(f"{count} clients: expected at least 2 x {liars} + 3")
    # The first of each row is the client itself, at 0.
    nearest = np.sort(squared_distances(points), axis=1)[:, 1 : count - liars - 1]
    scores: Vector = nearest.sum(axis=1)
    return scores


def krum_selection(points: Vector, liars: int) -> Vector:
    """Return the n - f clients of least score, ascending; of equal ones the first."""
    order = np.argsort(krum_scores(points, liars), kind="stable")
    chosen: Vector = np.sort(order[: len(points) - liars])
    return chosen


def nearest_mixture(points: Vector, weights: Vector, liars: int) -> Vector:
    """Return for each client the mean of its n - f nearest, itself among them."""
    distances = squared_distances(points)
    kept = np.argsort(distances, axis=1, kind="stable")[:, : len(points) - liars]
    mixed = np.empty(points.shape)
    for client, chosen in enumerate(np.sort(kept, axis=1)):
        mixed[client] = mean_of(points[chosen], weights[chosen])
    return mixed


def mean_of(points: Vector, weights: Vector) -> Vector:
    """Return the weighted mean, ``[parameters]``, within the box of the points."""
    total = np.zeros(points.shape[1])
    for point, weight in zip(points, weights / weights.sum(), strict=True):
        total += weight * point
    # Rounding could leave the box, and equal points would not come back as they are.
    mean: Vector = np.clip(total, points.min(axis=0), points.max(axis=0))
    return mean


def squared_distances(points: Vector) -> Vector:
    """Return the squared distances between clients, ``[clients, clients]``."""
    distances = np.zeros((len(points), len(points)))
    for row in range(1, len(points)):
        distances[row, :row] = squared_lengths(points[:row] - points[row])
    return distances + distances.T


def squared_lengths(vectors: Vector) -> Vector:
    """Return the squared length of each row; infinity where it overflows."""
    with np.errstate(over="ignore"):
        return np.array([float(np.square(vector).sum()) for vector in vectors])


def _middle(values: Vector) -> float:
    """Return the lower median."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _by_columns(points: Vector, rule: Callable[[Vector], Vector]) -> Vector:
    """Return a rule's result, made of a few columns at a time."""
    center = np.empty(points.shape[1])
    for start in range(0, points.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        center[columns] = rule(points[:, columns])
    return center


def _median_of(points: Vector, weights: Vector) -> Vector:
    order = np.argsort(points, axis=0, kind="stable")
    values = np.take_along_axis(points, order, axis=0)
    reached = np.cumsum(weights[order], axis=0)
    half = reached[-1] / 2
    # Sums of shares such as 0.1 are half but for rounding.
    slack = 1e-12 * half
    first = (reached >= half - slack).argmax(axis=0)
    columns = np.arange(points.shape[1])
    lower = values[first, columns]
    upper = values[np.minimum(first + 1, len(points) - 1), columns]
    even = np.abs(reached[first, columns] - half) <= slack
    median: Vector = np.where(even, lower / 2 + upper / 2, lower)
    return median


def _trimmed(points: Vector, weights: Vector, liars: int) -> Vector:
    order = np.argsort(points, axis=0, kind="stable")[liars : len(points) - liars]
    values = np.take_along_axis(points, order, axis=0)
    shares = weights[order] / weights[order].sum(axis=0)
    mean: Vector = np.clip((shares * values).sum(axis=0), values[0], values[-1])
    return mean


def liars_of(liars: float, num_clients: int) -> int:
    """Return how many of a round's clients may lie."""
    if liars >= 1:
        return int(liars)
    # A share of 0.2 of ten is two, not three for want of a last bit.
    return math.ceil(liars * num_clients - 1e-9)


def fewest_clients(aggregator: str, liars: int) -> int:
    """Return the fewest clients that a rule works with."""
    if aggregator == "mean":
        return 1
    return 2 * liars + (3 if aggregator == "multi-krum" else 1)


def too_few(aggregator: str, liars: float, num_clients: int) -> str:
    """Return why a round has too few clients for a rule; empty if it has enough."""
    assumed = liars_of(liars, num_clients)
    needed = fewest_clients(aggregator, assumed)
    if num_clients >= needed:
        return ""
    return (
        f"aggregator = {aggregator!r} needs {needed} clients in a round where {assumed} "
        f"may lie, and there are {num_clients}"
    )
