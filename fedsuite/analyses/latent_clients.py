r"""What averaging atoms and coefficients separately does to the filters.

W. Chen, Q. Qiu: Extra Clients at No Extra Cost, ICML 2025, arXiv:2503.08652. The server
averages the factors of m clients with weights :math:`p_k`, and the product of the averages
contains terms of clients that do not exist, which have the coefficients of one client and
the atoms of another:

.. math::

    \Big(\sum_k p_k \alpha_k\Big) \times \Big(\sum_k p_k D_k\Big)
    = \sum_k p_k^2\, \alpha_k \times D_k
    + \sum_{i \ne j} p_i p_j\, \alpha_i \times D_j \qquad (8)

The paper compares it with the average of the clients' filters. The difference is a weighted
covariance, of second order in how far clients have moved apart (:func:`covariance_gap`).

Its proposition 5.1 takes all m^2 products for independent, and predicts that they divide
the variance of the average by m. They are made of 2 m factors; for independent scalar
factors :func:`variance_ratio` is exact, and the variance falls less, often hardly at all.

All in float64. The clients' factors of one layer come as ``coefficients`` of shape
(m, channels out, channels in, q) and ``atoms`` of shape (m, q, height, width); weights are
>= 0 and are divided by their sum, so that numbers of examples will do.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsuite.core.rng import numpy_stream

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LatentClients:
    """The terms of Eq. (8); filters are (channels out, channels in, height, width).

    Parameters
    ----------
    real
        m terms, each a client's own filters times its weight squared.
    latent
        m^2 - m terms, each times its weight, in the order of ``pairs``.
    real_weights
        (m,): :math:`p_k^2`; they sum to :math:`S_2`, 1 / m for equal clients.
    latent_weights
        (m^2 - m,): :math:`p_i p_j`; they sum to :math:`1 - S_2`.
    pairs
        (m^2 - m, 2): whose coefficients, and whose atoms; ascending.
    """

    real: Array
    latent: Array
    real_weights: Array
    latent_weights: Array
    pairs: NDArray[np.int64]

    def total(self) -> Array:
        """Return the sum of all terms: the product of the averages."""
        total: Array = self.real.sum(axis=0) + self.latent.sum(axis=0)
        return total


def latent_client_decomposition(
    coefficients: ArrayLike, atoms: ArrayLike, weights: ArrayLike
) -> LatentClients:
    """Return the m real and m^2 - m latent terms of one layer, Eq. (8).

    Raises
    ------
    ValueError
        If shapes do not fit together, or the weights are no weights.
    """
    alphas, bases, shares = _checked(coefficients, atoms, weights)
    count = len(shares)
    everyone = np.arange(count)
    pairs = np.array([(i, j) for i in everyone for j in everyone if i != j], np.int64)
    first, second = pairs.reshape(-1, 2).T
    real_weights, latent_weights = shares**2, shares[first] * shares[second]
    return LatentClients(
        real=_scaled(real_weights, _products(alphas, bases)),
        latent=_scaled(latent_weights, _products(alphas[first], bases[second])),
        real_weights=real_weights,
        latent_weights=latent_weights,
        pairs=pairs.reshape(-1, 2),
    )


def product_of_averages(
    coefficients: ArrayLike, atoms: ArrayLike, weights: ArrayLike
) -> Array:
    """Return the filters after the factors were averaged, Eq. (5) and (6)."""
    alphas, bases, shares = _checked(coefficients, atoms, weights)
    averages = _scaled(shares, alphas).sum(axis=0), _scaled(shares, bases).sum(axis=0)
    product: Array = _products(averages[0][None], averages[1][None])[0]
    return product


def average_of_products(
    coefficients: ArrayLike, atoms: ArrayLike, weights: ArrayLike
) -> Array:
    """Return the average of the clients' filters: FedAvg as if there were no factors."""
    alphas, bases, shares = _checked(coefficients, atoms, weights)
    average: Array = _scaled(shares, _products(alphas, bases)).sum(axis=0)
    return average


def covariance_gap(coefficients: ArrayLike, atoms: ArrayLike, weights: ArrayLike) -> Array:
    r"""Return the average of products minus the product of averages.

    It is :math:`\sum_k p_k (\alpha_k - \bar\alpha) \times (D_k - \bar D)`: zero if all
    clients share their atoms, or their coefficients; a hundredth if they differ by a tenth.
    """
    alphas, bases, shares = _checked(coefficients, atoms, weights)
    alphas = alphas - _scaled(shares, alphas).sum(axis=0)
    bases = bases - _scaled(shares, bases).sum(axis=0)
    gap: Array = _scaled(shares, _products(alphas, bases)).sum(axis=0)
    return gap


def variance_ratio(
    weights: ArrayLike,
    means: tuple[float, float],
    deviations: tuple[float, float],
) -> float:
    r"""Return the variance of the product of averages over that of the average of products.

    For scalar factors that are independent, between clients and within one,

    .. math::

        \frac{S_2 (a^2 \tau^2 + d^2 \sigma^2) + S_2^2 \sigma^2 \tau^2}
             {S_2 (a^2 \tau^2 + d^2 \sigma^2 + \sigma^2 \tau^2)},
        \qquad S_2 = \sum_k p_k^2 .

    Only factors of mean 0 reach the paper's prediction, :math:`S_2`.

    Parameters
    ----------
    weights
        (m,), of the clients.
    means
        a of the coefficients, and d of the atoms.
    deviations
        Standard deviations, :math:`\sigma` of the coefficients and :math:`\tau` of the
        atoms.

    Raises
    ------
    ValueError
        If the average of products does not vary, or the weights are no weights.
    """
    concentration = float(np.square(_shares(weights)).sum())
    (a, d), (sigma, tau) = means, deviations
    linear = (a * tau) ** 2 + (d * sigma) ** 2
    both = (sigma * tau) ** 2
    if not linear + both > 0:
        raise ValueError(f"means {means}, deviations {deviations}: nothing varies")
    return (linear + concentration * both) / (linear + both)


def simulated_variance_ratio(
    weights: ArrayLike,
    means: tuple[float, float],
    deviations: tuple[float, float],
    *,
    draws: int = 100_000,
    seed: int = 0,
) -> float:
    """Return the ratio of :func:`variance_ratio`, estimated with normal factors.

    Parameters
    ----------
    weights, means, deviations
        As there.
    draws
        Rounds of all clients that are simulated, at least 2.
    seed
        Of the draws.
    """
    shares = _shares(weights)
    stream = numpy_stream(seed, "variance-ratio")
    alphas = stream.normal(means[0], deviations[0], (draws, len(shares)))
    bases = stream.normal(means[1], deviations[1], (draws, len(shares)))
    of_averages = (alphas @ shares) * (bases @ shares)
    of_products = (alphas * bases) @ shares
    return float(of_averages.var() / of_products.var())


def _checked(
    coefficients: ArrayLike, atoms: ArrayLike, weights: ArrayLike
) -> tuple[Array, Array, Array]:
    alphas = np.asarray(coefficients, np.float64)
    bases = np.asarray(atoms, np.float64)
    shares = _shares(weights)
    if (
        alphas.ndim != 4
        or bases.ndim != 4
        or alphas.shape[3] != bases.shape[1]
        or not len(alphas) == len(bases) == len(shares)
    ):
        raise ValueError(
            f"coefficients {alphas.shape}, atoms {bases.shape} and {len(shares)} weights: "
            "expected (m, channels out, channels in, q), (m, q, height, width) and m"
        )
    return alphas, bases, shares


def _shares(weights: ArrayLike) -> Array:
    values = np.asarray(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or not values.sum() > 0:
        raise ValueError("weights: expected a vector of finite numbers, not all 0")
    if (values < 0).any():
        raise ValueError("weights: expected numbers >= 0")
    shares: Array = values / values.sum()
    return shares


def _products(alphas: Array, bases: Array) -> Array:
    """Return each client's filters."""
    products: Array = np.einsum("koiq,kqxy->koixy", alphas, bases)
    return products


def _scaled(shares: Array, arrays: Array) -> Array:
    scaled: Array = shares.reshape(-1, *(1,) * (arrays.ndim - 1)) * arrays
    return scaled
