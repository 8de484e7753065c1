"""How far a client's rows are from the pool that they were drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsuite.data.pca import FloatArray
from fedsuite.data.specs import IntArray


@dataclass(frozen=True)
class ClientShift:
    """What came of the shift that was asked for, for one client.

    Parameters
    ----------
    squared_shift
        Squared Mahalanobis distance of the mean of the training rows from the mean of the
        training pool. Of n independent rows without any shift about ``dimensions / n``.
    test_squared_shift
        The same of the client's test rows, from the same mean; None without test rows.
    variance
        Variance of the training rows in units of the pool's, mean over the dimensions.
    effective_size
        (sum w)^2 / sum w^2 of the weights over the training pool: as many equally likely
        rows would give a mean as certain. Where weights draw nothing, the number of rows.
    distinct
        Different rows of the pool among the training rows.
    label_drift
        Total variation distance, 0 to 1, of the class shares of the training rows from
        those of the training pool.
    divergence
        KL divergence of the Gaussian fitted to the training rows from the pool's, the
        paper's measure of imbalanced covariate shift; None where the rows are too few or
        too much alike to fit one.
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
    """Return what each client's rows amount to; nothing if a client has none.

    Parameters
    ----------
    white
        Training and test pool in the coordinates in which the training pool is white.
    labels
        Classes of the training pool.
    train, test
        Positions of each client's rows in the two pools.
    effective_sizes
        What the report holds under that name.
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
    """Return KL(N(m, S) || N(0, I)) of the Gaussian fitted to rows, if S is regular."""
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
