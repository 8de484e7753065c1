"""Principal components of a training pool, and coordinates that whiten the pool.

Block power iteration with a Rayleigh-Ritz step finds the leading components. It reads the
rows in portions and never holds a covariance of all inputs. A component's sign is fixed:
its largest entry in size is positive.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError
from fedsuite.core.rng import numpy_stream
from fedsuite.data.cache import load_or_build

FloatArray = npt.NDArray[np.float64]

_PORTION = 2048
_SPARE_DIRECTIONS = 10
_MAX_PASSES = 40
_SETTLED = 1e-6
_NO_VARIANCE = 1e-10
_WORTH_KEEPING = 1 << 22  # values; from here on the passes cost more than a read from disk


@dataclass(frozen=True)
class Frame:
    """Coordinates in which a pool has mean 0 and the identity for covariance.

    Squared distances in these coordinates are squared Mahalanobis distances.

    Parameters
    ----------
    mean
        Mean of the pool, ``[inputs]``.
    components
        Orthonormal principal directions, largest variance first, ``[dimensions, inputs]``.
    deviations
        Standard deviation of the pool along each, > 0.
    """

    mean: FloatArray
    components: FloatArray
    deviations: FloatArray

    def whiten(self, features: npt.NDArray[Any]) -> FloatArray:
        """Return rows in the frame's coordinates, ``[rows, dimensions]``."""
        white = np.empty((len(features), len(self.deviations)))
        directions = self.components.T / self.deviations
        for rows, values in _portions(features):
            white[rows] = (values - self.mean) @ directions
        return white


def pool_frame(features: npt.NDArray[Any], dimensions: int) -> Frame:
    """Return :func:`fit_frame` of a pool, kept on disk where the pool is large.

    A process that serves one message would otherwise repeat the work for each message.
    """
    if features.size < _WORTH_KEEPING:
        return fit_frame(features, dimensions)
    digest = hashlib.sha256(f"{features.dtype.str}{features.shape}".encode())
    digest.update(np.ascontiguousarray(features).data)
    entry = f"pca-{dimensions}-{digest.hexdigest()[:32]}"
    return Frame(**load_or_build(entry, lambda: vars(fit_frame(features, dimensions))))


def fit_frame(features: npt.NDArray[Any], dimensions: int) -> Frame:
    """Fit mean, leading components and their deviations to rows ``[rows, ...]``.

    Raises
    ------
    DataError
        If a number is not finite, or the rows vary in fewer directions.
    """
    inputs = features[0].size
    mean = np.zeros(inputs)
    for _, values in _portions(features):
        mean += values.sum(axis=0) / len(features)
    if not np.isfinite(mean).all():
        raise DataError(
            "the inputs hold NaN or infinity: principal components need numbers"
        )
    start = numpy_stream(0, "principal-components").standard_normal(
        (inputs, min(dimensions + _SPARE_DIRECTIONS, inputs))
    )
    basis = np.linalg.qr(start)[0]
    variances = np.zeros(min(dimensions, inputs))
    for _ in range(_MAX_PASSES):
        image = _covariance_times(features, mean, basis)
        eigenvalues, rotation = np.linalg.eigh(basis.T @ image)
        before, variances = variances, eigenvalues[::-1][:dimensions]
        components = (basis @ rotation)[:, ::-1][:, :dimensions].T
        if (np.abs(variances - before) <= _SETTLED * np.abs(variances[0])).all():
            break
        basis = np.linalg.qr(image)[0]
    rank = int((variances > _NO_VARIANCE * max(variances[0], 0)).sum())
    if rank < dimensions:
        raise DataError(
            f"the {len(features)} rows vary in {rank} directions only, fewer than "
            f"shift-dimensions = {dimensions}; lower it"
        )
    largest = np.abs(components).argmax(axis=1)
    signs = np.sign(components[np.arange(dimensions), largest])
    return Frame(mean, components * signs[:, None], np.sqrt(variances))


def _covariance_times(
    features: npt.NDArray[Any], mean: FloatArray, basis: FloatArray
) -> FloatArray:
    """Return the pool's covariance (divisor: rows) times a basis."""
    image = np.zeros_like(basis)
    for _, values in _portions(features):
        centred = values - mean
        image += centred.T @ (centred @ basis)
    return image / len(features)


def _portions(features: npt.NDArray[Any]) -> Iterator[tuple[slice, FloatArray]]:
    for start in range(0, len(features), _PORTION):
        rows = slice(start, start + _PORTION)
        portion = features[rows]
        yield rows, portion.reshape(len(portion), -1).astype(np.float64)
