"""Variance of a product of averages against that of an average of products.

W. Chen, Q. Qiu, arXiv:2503.08652, Proposition 5.1, claims that averaging coefficients and
atoms apart lowers the variance of the aggregate by the factor S2 = sum of p_k^2, under the
assumption that all m^2 products of factors are independent, though they are made of 2 m
factors. For independent scalar factors a_k of mean a and variance s^2, and d_k of mean d
and variance t^2, the exact variances are

    average of products:   S2 (a^2 t^2 + d^2 s^2 + s^2 t^2)
    product of averages:   S2 (a^2 t^2 + d^2 s^2) + S2^2 s^2 t^2                    (S2)

so that only the last term shrinks. The simulation draws normal factors.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

from fedsuite.analyses.options import OutputOption, OverwriteOption, SeedOption
from fedsuite.analyses.output import Output, Table
from fedsuite.results.plots import PALETTE, dress
from fedsuite.rng import numpy_stream

BLOCK = 10_000
"""Repetitions drawn at a time: bounds the memory, not the result."""


@dataclass(frozen=True)
class Factors:
    """How both factors of each client are distributed.

    Parameters
    ----------
    mean, std
        Mean and standard deviation of coefficient and atom alike.
    """

    mean: float
    std: float


CASES = (Factors(1.0, 0.1), Factors(1.0, 1.0), Factors(0.3, 1.0), Factors(0.0, 1.0))


def exact_variances(factors: Factors, squared_weights: float) -> tuple[float, float]:
    """Return the variances of the average of products and of the product of averages.

    Parameters
    ----------
    factors
        Distribution of the factors.
    squared_weights
        S2, the sum of the squared weights; 1 / m for m equal clients.
    """
    single = 2 * factors.mean**2 * factors.std**2
    interaction = factors.std**4
    return (
        squared_weights * (single + interaction),
        squared_weights * single + squared_weights**2 * interaction,
    )


def simulated_variances(
    factors: Factors, num_clients: int, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return both variances, with clients of one weight, over ``draws`` repetitions."""
    products, averages = [], []
    for start in range(0, draws, BLOCK):
        shape = (2, min(BLOCK, draws - start), num_clients)
        coefficients, atoms = rng.normal(factors.mean, factors.std, shape)
        products.append((coefficients * atoms).mean(axis=1))
        averages.append(coefficients.mean(axis=1) * atoms.mean(axis=1))
    return float(np.concatenate(products).var()), float(np.concatenate(averages).var())


def command(
    output: OutputOption = Path("analysis"),
    clients: Annotated[int, typer.Option(min=2, help="Clients, all of one weight.")] = 10,
    draws: Annotated[int, typer.Option(min=2, help="Repetitions of a case.")] = 200_000,
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Simulate the variance of both aggregates and compare it with the exact formula."""
    files = Output.claim(output, "latent_variance", overwrite=overwrite)
    rows = []
    for index, factors in enumerate(CASES):
        exact = exact_variances(factors, 1 / clients)
        rng = numpy_stream(seed, "latent-variance", index)
        found = simulated_variances(factors, clients, draws, rng)
        ratios = exact[1] / exact[0], found[1] / found[0], 1 / clients
        rows.append((factors.mean, factors.std, *exact, *ratios))
    columns = (
        *("factor mean", "factor std", "variance: average of products"),
        *("variance: product of averages", "ratio", "ratio simulated", "ratio claimed"),
    )
    note = (
        f"{clients} clients with independent factors, {draws} repetitions. Ratio: variance "
        "of the product of averages over that of the average of products; claimed: "
        "Proposition 5.1 of the paper, which takes all products to be independent."
    )
    table = Table(columns, rows, note)
    files.write(table, ratio_figure(clients, rows))


def ratio_figure(
    num_clients: int, rows: list[tuple[float, float, float, float, float, float, float]]
) -> Figure:
    """Draw the exact ratio against mean over deviation, and the simulated cases."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    grid = np.linspace(0, max(row[0] / row[1] for row in rows) * 1.02, 400)
    variances = [exact_variances(Factors(float(x), 1.0), 1 / num_clients) for x in grid]
    curve = [product / mean for mean, product in variances]
    axes.plot(grid, curve, color=PALETTE[0], linewidth=1.6, label="exact")
    points = [row[0] / row[1] for row in rows], [row[5] for row in rows]
    axes.plot(*points, "o", color=PALETTE[1], label="simulated", zorder=3)
    axes.axhline(1 / num_clients, color="black", linestyle="--", label="claimed: 1 / m")
    axes.set_xscale("asinh", linear_width=0.3)
    axes.set_xticks(points[0], [f"{point:g}" for point in points[0]])
    axes.set_ylim(0, 1.05)
    axes.set_xlim(left=-0.02)
    title = f"Variance left by averaging factors apart, {num_clients} clients"
    dress(axes, title, "mean / standard deviation of a factor", "ratio of variances")
    axes.legend(frameon=False)
    return figure
