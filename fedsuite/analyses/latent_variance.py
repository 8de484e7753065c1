"""Variance of a product of averages against that of an average of products.

W. Chen, Q. Qiu, arXiv:2503.08652, proposition 5.1, claims that averaging coefficients and
atoms apart divides the variance of the aggregate by the number of clients. The proposition
takes all m^2 products of factors for independent. There are only 2 m factors, so the
variance falls less, often hardly at all.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fedsuite.analyses.options import OutputOption, OverwriteOption, SeedOption
from fedsuite.analyses.output import Output, Table, panels
from fedsuite.core.rng import numpy_stream
from fedsuite.results.plots import PALETTE, dress

CASES = ((1.0, 0.1), (1.0, 1.0), (0.3, 1.0), (0.0, 1.0))
"""Mean and standard deviation of coefficient and atom alike."""


class Row(NamedTuple):
    """One case with its ratios of variances."""

    mean: float
    deviation: float
    exact: float
    simulated: float
    claimed: float


def measure(clients: int, draws: int, seed: int) -> list[Row]:
    """Return the ratios of all cases, for clients of equal weight."""
    weights = np.ones(clients)
    rows = []
    for mean, deviation in CASES:
        both = (mean, mean), (deviation, deviation)
        exact = variance_ratio(weights, *both)
        simulated = simulated_variance_ratio(weights, *both, draws=draws, seed=seed)
        rows.append(Row(mean, deviation, exact, simulated, 1 / clients))
    return rows


def variance_ratio(
    weights: ArrayLike, means: tuple[float, float], deviations: tuple[float, float]
) -> float:
    r"""Return the exact ratio for independent scalar factors.

    The ratio is the variance of the product of averages over the variance of the average of
    products:

    .. math::

        \frac{S_2 (a^2 \tau^2 + d^2 \sigma^2) + S_2^2 \sigma^2 \tau^2}
             {S_2 (a^2 \tau^2 + d^2 \sigma^2 + \sigma^2 \tau^2)},
        \qquad S_2 = \sum_k p_k^2 .

    Only factors of mean 0 reach the paper's prediction, :math:`S_2`.

    Parameters
    ----------
    weights
        Clients' weights (m,), >= 0, which are divided by their sum.
    means, deviations
        Of the coefficients, a and :math:`\sigma`, and of the atoms, d and :math:`\tau`.
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
    """Return the simulated ratio of :func:`variance_ratio` for normal factors.

    ``draws`` is the number of simulated rounds of all clients, at least 2.
    """
    shares = _shares(weights)
    stream = numpy_stream(seed, "variance-ratio")
    alphas = stream.normal(means[0], deviations[0], (draws, len(shares)))
    bases = stream.normal(means[1], deviations[1], (draws, len(shares)))
    of_averages = (alphas @ shares) * (bases @ shares)
    of_products = (alphas * bases) @ shares
    return float(of_averages.var() / of_products.var())


def command(
    output: OutputOption = Path("analysis"),
    clients: Annotated[int, typer.Option(min=2, help="Clients, all of one weight.")] = 10,
    draws: Annotated[int, typer.Option(min=2, help="Repetitions of a case.")] = 200_000,
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Simulate the variance of both aggregates and compare it with the exact formula."""
    files = Output.claim(output, "latent_variance", overwrite=overwrite)
    rows = measure(clients, draws, seed)
    columns = ("factor mean", "factor deviation", "ratio", "simulated", "claimed")
    note = (
        f"{clients} clients with independent factors, {draws} repetitions. Ratio: variance "
        "of the product of averages over that of the average of products. Claimed: "
        "proposition 5.1 of the paper, which takes all products to be independent."
    )
    files.write(Table(columns, rows, note), ratio_figure(clients, rows))


def ratio_figure(clients: int, rows: list[Row]) -> Figure:
    """Draw the exact ratio against mean over deviation, and the simulated cases."""
    figure, (axes,) = panels(1, 1, 6.4, 4.0)
    points = [row.mean / row.deviation for row in rows]
    grid = np.linspace(0, max(points), 400)
    curve = [variance_ratio(np.ones(clients), (x, x), (1.0, 1.0)) for x in grid.tolist()]
    axes.plot(grid, curve, color=PALETTE[0], linewidth=1.6, label="exact")
    simulated = [row.simulated for row in rows]
    axes.plot(points, simulated, "o", color=PALETTE[1], label="simulated", zorder=3)
    axes.axhline(1 / clients, color="black", linestyle="--", label="claimed: 1 / m")
    axes.set_xscale("asinh", linear_width=0.3)
    axes.set_xticks(points, [f"{point:g}" for point in points])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 1.05)
    axes.set_xlim(left=-0.02)
    title = f"Variance left by averaging factors apart, {clients} clients"
    dress(axes, title, "mean / standard deviation of a factor", "ratio of variances")
    axes.legend(frameon=False)
    return figure


def _shares(weights: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or not values.sum() > 0:
        raise ValueError("weights: expected a vector of finite numbers, not all 0")
    if (values < 0).any():
        raise ValueError("weights: expected numbers >= 0")
    shares: NDArray[np.float64] = values / values.sum()
    return shares
