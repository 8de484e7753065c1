"""Partitioners that shift clients' inputs by a known amount.

Yu et al., KDD 2025, arXiv:2507.08617 (FedAKD), Appendix E. In the coordinates of
:mod:`fedsuite.data.pca` the training pool has mean 0 and covariance I. Client k gets a
displacement s_k of squared length C in a random direction, so delta_k = sqrt(C) L u / |u|
in units of the inputs with the pool's covariance L L', and

    log w_i = s_k . z_i     (= delta_k' Sigma^-1 (x_i - mu))

is, up to a constant, the log of the density ratio of N(mu + delta_k, Sigma) to N(mu,
Sigma). Rows drawn by these weights from a Gaussian pool are N(mu + delta_k, Sigma).
Training and test rows are drawn from separate pools with the same s_k. Real pools are not
Gaussian, so the shift reached is measured and reported.

Two more partitioners follow the paper's print and its authors' code:

* ``covariate-shift-printed``: log w_i = -|z_i - s_k|^2 / 2, the target's density instead
  of the ratio. The rows drawn are N(mu + delta_k / 2, Sigma / 2): half the shift, a quarter
  of C, and half the covariance.
* ``first-component``: rows sorted by their first principal component and cut into blocks.
  C plays no part: ICS(2), ICS(5) and ICS(10) of that code are one partition. Blocks differ
  in their labels too. An arbitrary sign decides which end of the component is used.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from fedsuite.core.errors import DataError
from fedsuite.data.partition import Partition, Samples, cut, power_law_sizes
from fedsuite.data.pca import FloatArray, pool_frame
from fedsuite.data.shift_report import measure_shift
from fedsuite.data.specs import IntArray

LogWeights = Callable[[FloatArray, FloatArray], FloatArray]
"""Function of coordinates and displacement that returns log-weights, up to a constant."""


def displacement(
    rng: np.random.Generator, dimensions: int, squared_shift: float
) -> FloatArray:
    """Draw a displacement of a given squared length in a uniformly random direction."""
    direction = rng.standard_normal(dimensions)
    shift: FloatArray = direction * np.sqrt(squared_shift / np.square(direction).sum())
    return shift


def ratio_log_weights(white: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the log of the density ratio of the shifted to the pool's Gaussian."""
    # Without BLAS, whose bits depend on its threads.
    weights: FloatArray = np.einsum("nd,d->n", white, shift)
    return weights


def printed_log_weights(white: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the log-density of the shifted Gaussian, as the paper prints it."""
    weights: FloatArray = -np.square(white - shift).sum(axis=1) / 2
    return weights


def effective_size(log_weights: FloatArray) -> float:
    """Return the effective sample size (sum w)^2 / sum w^2."""
    total, squares = (np.logaddexp.reduce(m * log_weights) for m in (1, 2))
    return float(np.exp(2 * total - squares))


def draw_rows(
    rng: np.random.Generator, log_weights: FloatArray, size: int, replacement: bool
) -> IntArray:
    """Draw rows with chances proportional to their weights.

    Without replacement each draw is among the rows left. This pulls the mean back to the
    pool's mean, the more so the larger the part of the pool that is drawn.
    """
    if size == 0:
        return np.empty(0, np.int64)
    if replacement:
        chances = np.exp(log_weights - np.logaddexp.reduce(log_weights))
        rows: IntArray = rng.choice(len(log_weights), size, p=chances / chances.sum())
        return rows
    # The rows with the largest log-weight plus Gumbel noise are such draws, in order.
    ranks = log_weights + rng.gumbel(size=len(log_weights))
    order: IntArray = np.argsort(-ranks, kind="stable")[:size]
    return order


def covariate_shift(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    squared_shift: float = 5.0,
    shift_dimensions: int = 20,
    shift_replacement: bool = True,
    power_law_exponent: float = 1.0,
    data_fraction: float = 1.0,
    log_weights: LogWeights = ratio_log_weights,
) -> Partition:
    """Draw each client's rows by weights that shift its inputs.

    Parameters
    ----------
    squared_shift
        C: squared Mahalanobis distance of each client's target mean from the pool's.
    shift_dimensions
        Number of the training pool's principal components in which the Gaussian is fitted.
    shift_replacement
        Whether a client may hold copies of a row. Without copies, the shift falls short of
        C. Clients may share rows either way.
    power_law_exponent, data_fraction
        Sizes are proportional to ``1 / k**exponent`` and add up to this share of the pool.
    log_weights
        Weights of the draws.
    """
    pools = _white_pools(samples, shift_dimensions)
    sizes = _part_sizes(pools, num_clients, power_law_exponent, data_fraction)
    train, test, effective = [], [], []
    for client, stream in enumerate(rng.spawn(num_clients)):
        # Each client has its own streams: its direction depends on neither C nor the sizes.
        directions, train_draws, test_draws = stream.spawn(3)
        shift = displacement(directions, shift_dimensions, squared_shift)
        weights = log_weights(pools[0], shift)
        test_weights = log_weights(pools[1], shift)
        train_size, test_size = (int(part[client]) for part in sizes)
        train.append(draw_rows(train_draws, weights, train_size, shift_replacement))
        test.append(draw_rows(test_draws, test_weights, test_size, shift_replacement))
        effective.append(effective_size(weights))
    report = measure_shift(pools, samples.train_labels, train, test, effective)
    return Partition(tuple(train), tuple(test), report)


printed_covariate_shift = partial(covariate_shift, log_weights=printed_log_weights)
"""Draw each client's rows by the weights that the paper prints."""


def first_component(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    shift_dimensions: int = 20,
    power_law_exponent: float = 1.0,
    data_fraction: float = 1.0,
) -> Partition:
    """Sort rows by their first principal component, and cut the lower end into blocks.

    Nothing is drawn: the seed has no effect. ``shift_dimensions`` is for the report.
    """
    pools = _white_pools(samples, shift_dimensions)
    sizes = _part_sizes(pools, num_clients, power_law_exponent, data_fraction)
    train, test = (
        cut(np.argsort(pool[:, 0], kind="stable"), part)
        for pool, part in zip(pools, sizes, strict=True)
    )
    counts = [float(len(rows)) for rows in train]
    report = measure_shift(pools, samples.train_labels, train, test, counts)
    return Partition(train, test, report)


def _white_pools(samples: Samples, dimensions: int) -> tuple[FloatArray, FloatArray]:
    """Return both pools in coordinates that whiten the training pool."""
    if samples.train_features is None or samples.test_features is None:
        raise DataError("this partitioner goes by the inputs, and none were given")
    frame = pool_frame(samples.train_features, dimensions)
    return frame.whiten(samples.train_features), frame.whiten(samples.test_features)


def _part_sizes(
    pools: tuple[FloatArray, FloatArray], num_clients: int, exponent: float, share: float
) -> list[IntArray]:
    return [power_law_sizes(int(share * len(p)), num_clients, exponent) for p in pools]
