"""A partitioner that shifts clients' inputs by a known amount.

Yu et al., KDD 2025, arXiv:2507.08617 (FedAKD), Appendix E. In the coordinates of
:mod:`fedsuite.data.pca` the training pool has mean 0 and covariance I. Client k gets a
displacement s_k of squared length C in a random direction, so delta_k = sqrt(C) L u / |u|
in units of the inputs with the pool's covariance L L', and

    log w_i = s_k . z_i     (= delta_k' Sigma^-1 (x_i - mu))

is, up to a constant, the log of the density ratio of N(mu + delta_k, Sigma) to N(mu,
Sigma). Rows drawn by these weights from a Gaussian pool are N(mu + delta_k, Sigma).
Training and test rows are drawn from separate pools with the same s_k. Real pools are not
Gaussian, so the shift reached is measured and reported.
"""

from typing import ClassVar

import numpy as np
from numpy.random import Generator

from fedsuite.core.errors import DataError
from fedsuite.core.settings import key
from fedsuite.data.division import Partition, Samples
from fedsuite.data.partition import Sized
from fedsuite.data.pca import FloatArray, pool_frame
from fedsuite.data.shift_report import measure_shift
from fedsuite.data.specs import IntArray


def displacement(rng: Generator, dimensions: int, squared_shift: float) -> FloatArray:
    """Draw a displacement of a given squared length in a uniformly random direction."""
    direction = rng.standard_normal(dimensions)
    shift: FloatArray = direction * np.sqrt(squared_shift / np.square(direction).sum())
    return shift


def ratio_log_weights(white: FloatArray, shift: FloatArray) -> FloatArray:
    """Return the log of the density ratio of the shifted to the pool's Gaussian."""
    # Without BLAS, whose bits depend on its threads.
    weights: FloatArray = np.einsum("nd,d->n", white, shift)
    return weights


def effective_size(log_weights: FloatArray) -> float:
    """Return the effective sample size (sum w)^2 / sum w^2."""
    total, squares = (np.logaddexp.reduce(m * log_weights) for m in (1, 2))
    return float(np.exp(2 * total - squares))


def draw_rows(rng: Generator, log_weights: FloatArray, size: int) -> IntArray:
    """Draw rows, with replacement, with chances proportional to their weights."""
    if size == 0:
        return np.empty(0, np.int64)
    chances = np.exp(log_weights - np.logaddexp.reduce(log_weights))
    rows: IntArray = rng.choice(len(log_weights), size, p=chances / chances.sum())
    return rows


class CovariateShift(Sized):
    """Inputs shifted by density-ratio weights, sizes as :class:`PowerLaw`, rows shared."""

    NAME: ClassVar[str] = "covariate-shift"
    USES_FEATURES: ClassVar[bool] = True
    SHARES_ROWS: ClassVar[bool] = True

    shift_dimensions: int = key(
        default=20,
        help="principal components in which inputs are shifted, and shifts measured",
        minimum=1,
    )
    squared_shift: float = key(
        default=5.0,
        help="C, squared Mahalanobis distance of a client's mean from the pool's; 0 is "
        "none",
        minimum=0,
    )

    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        pools = self._pools(samples)
        sizes = [self.sizes(len(pool), num_clients) for pool in pools]
        held: tuple[list[IntArray], list[IntArray]] = ([], [])
        effective = []
        for client, stream in enumerate(rng.spawn(num_clients)):
            # A client's streams are its own: its direction depends on neither C nor sizes.
            directions, *draws = stream.spawn(3)
            shift = displacement(directions, self.shift_dimensions, self.squared_shift)
            weights = [ratio_log_weights(pool, shift) for pool in pools]
            for part, drawn in enumerate(held):
                size = int(sizes[part][client])
                drawn.append(draw_rows(draws[part], weights[part], size))
            effective.append(effective_size(weights[0]))
        train, test = held
        report = measure_shift(pools, samples.train_labels, train, test, effective)
        return Partition(tuple(train), tuple(test), report)

    def _pools(self, samples: Samples) -> tuple[FloatArray, FloatArray]:
        """Return both pools in coordinates that whiten the training pool."""
        if samples.train_features is None or samples.test_features is None:
            raise DataError("this partitioner goes by the inputs, and none were given")
        frame = pool_frame(samples.train_features, self.shift_dimensions)
        return frame.whiten(samples.train_features), frame.whiten(samples.test_features)
