"""Variance of mini-batch gradients of FedAL's loss terms, at the ends of runs.

Figure 6 of P. Han, X. Shi, J. Huang, "FedAL", arXiv:2311.16584. A term's variance is the
mean over mini-batches of ||g_batch - g_full||^2. The full gradient is over all of a
client's private rows (label loss, local less-forgetting) or over all public rows (the other
terms). The paper says neither whose variance nor when. Here it is the mean and the largest
over clients.

At the last checkpoint itself the less-forgetting terms and their gradients are 0, because
model and reference are the same. So each client first makes the next round's local phase
from the checkpoint, with that round's draws. All terms are measured at the end of this
phase. The reference of both less-forgetting terms is the checkpoint's model. (The next
round itself would take the phase's end as the reference of the transfer's term.) The
others' mean and the discriminator's gradient are those of the models at that point, under
the checkpoint's discriminator. The discriminator's own loss is taken per client: the mean
of -log h(p_n)_n of client n, by the discriminator's parameters.

Networks are in evaluation mode and images are not augmented, so that the mean of a batch's
gradient is the full gradient. Batches have the run's sizes.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import torch
import typer
from matplotlib.figure import Figure
from torch import Tensor

from fedsuite.cli import main
from fedsuite.core.rng import numpy_stream
from fedsuite.experiment.command_options import OutputOption, OverwriteOption, RunsArgument
from fedsuite.models.evaluation_mode import EVALUATION_BATCH
from fedsuite.results.analysis_files import Table
from fedsuite.results.groups import SEED, group_runs
from fedsuite.results.plots import dress, line_style
from fedsuite.results.reader import Run, load_run
from simulations.fedal.final_models import FinalModels
from simulations.fedal.loss_terms import NAMES, NextPhase, Term
from simulations.figures import (
    DrawnOutput,
    SeedOption,
    escape_dollars,
    legend_below,
    panels,
    whole_rounds,
)


class Row(NamedTuple):
    """A term's variance over the clients of a run."""

    label: str
    seed: str
    server_round: int
    term: str
    num_clients: int
    mean: float
    largest: float


def gradient(term: Term, rows: Tensor) -> Tensor:
    """Return the gradient (P,) of a term's mean over rows, computed in parts."""
    parts = []
    for part in torch.split(rows, EVALUATION_BATCH):
        share = term.loss(part) * (len(part) / len(rows))
        gradients = torch.autograd.grad(share, term.parameters, materialize_grads=True)
        parts.append(torch.cat([each.flatten() for each in gradients]).double())
    return torch.stack(parts).sum(dim=0)


def gradient_variance(term: Term, batches: Iterable[Tensor]) -> float:
    """Return the mean over batches of the squared distance from the full gradient."""
    full = gradient(term, torch.arange(term.num_rows))
    return fmean(float((gradient(term, rows) - full).square().sum()) for rows in batches)


def drawn_batches(
    term: Term, count: int, seed: int, server_round: int, client_id: int
) -> Iterator[Tensor]:
    """Yield a term's mini-batches; all clients share those of public rows."""
    size = term.batch_size or term.num_rows
    kind, owner = ("private", client_id) if term.is_private else ("public", 0)
    for number in range(count):
        purpose = f"gradient-variance/{kind}/{number}"
        order = numpy_stream(seed, purpose, server_round, owner).permutation(term.num_rows)
        yield torch.from_numpy(order[:size])


def run_variances(label: str, run: Run, count: int, seed: int) -> list[Row]:
    """Return the variance of each term of a run, over the clients.

    ``count`` is the number of mini-batches per client and term.
    """
    phase = NextPhase(FinalModels(run))
    variances: dict[str, list[float]] = {}
    for client, terms in phase.clients():
        for term in terms:
            batches = drawn_batches(term, count, seed, phase.server_round, client.client_id)
            variances.setdefault(term.name, []).append(gradient_variance(term, batches))
    own = (label, str(run.experiment.get(SEED)), phase.server_round)
    return [
        Row(*own, name, len(variances[name]), fmean(variances[name]), max(variances[name]))
        for name in NAMES
        if name in variances
    ]


def command(
    runs: RunsArgument,
    output: OutputOption = Path("analysis"),
    batches: Annotated[
        int, typer.Option(min=1, help="Mini-batches per client and term.")
    ] = 50,
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Measure how much mini-batch gradients of FedAL's terms vary at the ends of runs."""
    groups = group_runs([load_run(path) for path in runs])
    files = DrawnOutput.claim(output, "gradient_variance", overwrite=overwrite)
    rows = [
        row
        for group in groups
        for run in group.runs
        for row in run_variances(group.label, run, batches, seed)
    ]
    columns = ("experiment", "seed", "round", "term", "clients", "mean", "largest")
    note = (
        f"Mean over {batches} mini-batches of ||g_batch - g_full||^2, over clients; after "
        "the local phase that follows the round, the reference of the less-forgetting "
        "terms being the model before it."
    )
    files.draw(Table(columns, rows, note), variance_figure(rows))


def variance_figure(rows: Sequence[Row]) -> Figure:
    """Draw mean and largest against rounds, a panel per term, a colour per experiment."""
    terms = [name for name in NAMES if any(row.term == name for row in rows)]
    labels = list(dict.fromkeys(row.label for row in rows))
    room = 0.4 * len(labels) + 0.2
    figure, grid = panels(len(terms), min(3, len(terms)), 3.8, 3.0, extra=room)
    for axes, term in zip(grid, terms, strict=True):
        for index, label in enumerate(labels):
            own = [row for row in rows if (row.term, row.label) == (term, label)]
            rounds = sorted({row.server_round for row in own})
            for kind, style in (("mean", "o-"), ("largest", "^:")):
                values = [
                    fmean(getattr(row, kind) for row in own if row.server_round == r)
                    for r in rounds
                ]
                colour = line_style(index)["color"]
                name = escape_dollars(f"{label}, {kind} over clients")
                axes.plot(rounds, values, style, color=colour, markersize=4, label=name)
        dress(axes, term, "round", "variance of gradients")
        axes.set_yscale("log")
        whole_rounds(axes)
    legend_below(figure, grid[0])
    return figure


if __name__ == "__main__":
    main(lambda: typer.run(command))
