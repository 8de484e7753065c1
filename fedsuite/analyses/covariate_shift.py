"""Measured shifts of three generators of covariate shift.

Yu et al., KDD 2025, arXiv:2507.08617 (FedAKD), section 4.2 and Appendix E; the generators
are those of :mod:`fedsuite.data.covariate_shift`. C = 0 shows the effect of sampling alone.
The last panel is the paper's figure 1a on this data: the KL divergence of the Gaussian
fitted to a client's rows from the pool's Gaussian, in principal components instead of an
autoencoder's latent space.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsuite.analyses.options import OutputOption, OverwriteOption
from fedsuite.analyses.output import Cell, Output, Table, legend_below, panels
from fedsuite.core.files import atomic_write
from fedsuite.core.keys import Value
from fedsuite.core.output import print_line
from fedsuite.data import ClientShift, CovariateShift, load_federated_data
from fedsuite.experiment.command_options import FileArgument, SetOption, overrides
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.plots import PALETTE, dress

GENERATORS = ("covariate-shift", "covariate-shift-printed", "first-component")

COLUMNS = (
    *("partitioner", "C", "shift", "least", "most", "variance"),
    *("ESS", "least ESS", "distinct %", "drift", "KL"),
)
CLIENT_COLUMNS = (
    *("partitioner", "C", "client", "rows", "squared shift", "squared shift of test rows"),
    *("variance", "effective size", "distinct", "label drift", "KL"),
)
NOTE = (
    "Means over clients. Shift: squared Mahalanobis distance of a client's mean. ESS: "
    "effective sample size of the weights over the pool; for first-component, which has "
    "neither weights nor C, the rows. Drift: total variation of the labels. KL: of the "
    "Gaussian fitted to a client's rows from the pool's."
)


@dataclass(frozen=True)
class Case:
    """One client of one generator at one C, with ``rows`` training rows."""

    generator: str
    asked: float
    client: int
    rows: int
    shift: ClientShift


def measure(
    values: dict[str, Value], seed: int, squared_shifts: Sequence[float]
) -> list[Case]:
    """Return the cases of all generators, clients and values of C, for an experiment."""
    cases = []
    for generator in GENERATORS:
        for asked in squared_shifts:
            changed = {**values, "partitioner": generator, "squared-shift": asked}
            partition = load_federated_data(changed, seed).partition
            held = zip(partition.train, partition.shifts, strict=True)
            cases += [
                Case(generator, asked, client, len(rows), shift)
                for client, (rows, shift) in enumerate(held)
            ]
    return cases


def command(
    experiment: FileArgument,
    output: OutputOption = Path("analysis"),
    squared_shifts: Annotated[
        str, typer.Option(metavar="A,B,C", help="Values of squared-shift.")
    ] = "0,2,5,10",
    settings: SetOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Divide the experiment's data by each generator, and measure the clients."""
    chosen = Experiment.load(experiment, overrides(settings))
    key = next(k for k in CovariateShift.KEYS if k.name == "squared-shift")
    asked = [float(key.parse_text(text)) for text in squared_shifts.split(",")]
    files = Output.claim(output, "covariate_shift", overwrite=overwrite)
    cases = measure(dict(chosen.values), chosen.seed, asked)
    clients = output / "covariate_shift_clients.csv"
    rows = Table(CLIENT_COLUMNS, [_client_row(case) for case in cases])
    atomic_write(clients, rows.to_csv().encode())
    table = Table(COLUMNS, [_row(group) for group in _groups(cases)], NOTE)
    files.write(table, covariate_shift_figure(cases))
    print_line(f"each client: {clients}")


def covariate_shift_figure(cases: Sequence[Case]) -> Figure:
    """Draw shift, variance, effective size, distinct rows and label drift against C."""
    figure, grid = panels(6, 3, 4.0, 3.5)
    quantities: tuple[tuple[str, Callable[[Case], float]], ...] = (
        ("Squared Mahalanobis shift", lambda case: case.shift.squared_shift),
        ("Variance, in units of the pool's", lambda case: case.shift.variance),
        ("Effective sample size", lambda case: case.shift.effective_size),
        ("Distinct rows, of the rows held", lambda case: case.shift.distinct / case.rows),
        ("Label drift", lambda case: case.shift.label_drift),
    )
    for axes, (title, quantity) in zip(grid, quantities, strict=False):
        for index, generator in enumerate(GENERATORS):
            groups = [g for g in _groups(cases) if g[0].generator == generator]
            points = [(g[0].asked, [quantity(case) for case in g]) for g in groups]
            _draw(axes, points, index, generator)
        dress(axes, title, "C", "")
    asked = sorted({case.asked for case in cases})
    grid[0].plot(asked, asked, color="black", linestyle=":", label="as asked")
    grid[2].set_yscale("log")
    _draw_divergence(grid[5], cases)
    legend_below(figure, grid[0], columns=4)
    return figure


def _draw(
    axes: Axes, points: Sequence[tuple[float, list[float]]], index: int, name: str
) -> None:
    """Draw the mean over clients as a line, and each client as a faint dot."""
    colour = PALETTE[index]
    means = [fmean(values) for _, values in points]
    axes.plot([c for c, _ in points], means, color=colour, marker="o", ms=4, label=name)
    for asked, values in points:
        axes.scatter([asked] * len(values), values, color=colour, alpha=0.3, s=10, lw=0)


def _draw_divergence(axes: Axes, cases: Sequence[Case]) -> None:
    """Draw the divergence against the number of rows, for the density ratio."""
    ratio = [g for g in _groups(cases) if g[0].generator == GENERATORS[0]]
    for index, group in enumerate(ratio):
        known = [(c.rows, c.shift.divergence) for c in group if c.shift.divergence]
        axes.scatter(
            [rows for rows, _ in known],
            [divergence for _, divergence in known],
            color=PALETTE[index % len(PALETTE)],
            s=14,
            label=f"C = {group[0].asked:g}",
        )
    dress(axes, "KL divergence, covariate-shift", "training rows", "")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)


def _groups(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yield the clients of each generator and C."""
    for generator, asked in dict.fromkeys((case.generator, case.asked) for case in cases):
        yield [c for c in cases if (c.generator, c.asked) == (generator, asked)]


def _row(group: Sequence[Case]) -> list[Cell]:
    shifts = [case.shift for case in group]
    reached = [shift.squared_shift for shift in shifts]
    effective = [shift.effective_size for shift in shifts]
    divergences = [s.divergence for s in shifts if s.divergence is not None]
    distinct = 100 * fmean(case.shift.distinct / case.rows for case in group)
    return [
        *(group[0].generator, group[0].asked, fmean(reached), min(reached), max(reached)),
        *(fmean(shift.variance for shift in shifts), fmean(effective), min(effective)),
        *(distinct, fmean(shift.label_drift for shift in shifts)),
        fmean(divergences) if divergences else None,
    ]


def _client_row(case: Case) -> list[Cell]:
    shift = case.shift
    return [
        *(case.generator, case.asked, case.client, case.rows),
        *(shift.squared_shift, shift.test_squared_shift, shift.variance),
        *(shift.effective_size, shift.distinct, shift.label_drift, shift.divergence),
    ]
