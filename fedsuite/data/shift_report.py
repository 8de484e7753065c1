"""Measures of the shift between a client's rows and the pool of all rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsuite.data.pca import FloatArray
from fedsuite.data.specs import IntArray


@dataclass(frozen=True)
class ClientShift:
    """Measured covariate shift of one client.

    Parameters
    ----------
    squared_shift
        Squared Mahalanobis distance of the training rows' mean from the training pool's
        mean. About ``dimensions / n`` for n independent rows without shift.
    test_squared_shift
        The same distance of the client's test rows; None without test rows.
    variance
        Variance of the training rows in units of the pool's, mean over the dimensions.
    effective_size
        (sum w)^2 / sum w^2 of the weights over the training pool: so many equally likely
        rows would give as certain a mean. The number of rows where nothing is drawn.
    distinct
        Different rows of the pool among the training rows.
    label_drift
        Total variation distance, 0 to 1, of the class shares of the training rows from
        those of the training pool.
    divergence
        KL divergence of the Gaussian fitted to the training rows from the pool's Gaussian,
        the paper's measure of imbalanced covariate shift. None where the rows are too few
        or too much alike to fit a Gaussian.
    """

    squared_shift: float
    test_squared_shift: float | None
    variance: float
    effective_size: float
    distinct: int
    label_drift: float
    divergence: float | None


def measure_shift(
    white: tuple[FloatArray, FloatArray],
    labels: IntArray,
    train: Sequence[IntArray],
    test: Sequence[IntArray],
    effective_sizes: Sequence[float],
) -> tuple[ClientShift, ...]:
    """Return the measured shift of each client; empty if any client has no rows.

    Parameters
    ----------
    white
        Training and test pool in coordinates that whiten the training pool.
    labels
        Classes of the training pool.
    train, test, effective_sizes
        Each client's rows in the two pools, and effective size.
    """
    if not all(map(len, train)):
        return ()
    num_classes = int(labels.max()) + 1
    shares = np.bincount(labels, minlength=num_classes) / len(labels)
    report = []
    for rows, test_rows, effective in zip(train, test, effective_sizes, strict=True):
        points = white[0][rows]
        held = np.bincount(labels[rows], minlength=num_classes) / len(rows)
        report.append(
            ClientShift(
                squared_shift=_squared_mean(points),
                test_squared_shift=(
                    _squared_mean(white[1][test_rows]) if len(test_rows) else None
                ),
                variance=float(points.var(axis=0).mean()),
                effective_size=float(effective),
                distinct=len(np.unique(rows)),
                label_drift=float(np.abs(held - shares).sum() / 2),
                divergence=divergence_from_white(points),
            )
        )
    return tuple(report)


def divergence_from_white(points: FloatArray) -> float | None:
    """Return KL(N(m, S) || N(0, I)) of the rows' Gaussian, None for a singular S."""
    mean = points.mean(axis=0)
    covariance = np.atleast_2d(np.cov(points, rowvar=False, bias=True))
    sign, log_determinant = np.linalg.slogdet(covariance)
    rank = np.linalg.matrix_rank(covariance, hermitian=True)
    if sign <= 0 or rank < len(mean):
        return None
    surplus = np.trace(covariance) - len(mean) + mean @ mean
    return float((surplus - log_determinant) / 2)


def _squared_mean(points: FloatArray) -> float:
    return float(np.square(points.mean(axis=0)).sum())
