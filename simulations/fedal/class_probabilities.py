"""Mean class probabilities of clients' final models, per true class.

Figure 2 of P. Han, X. Shi, J. Huang, "FedAL", arXiv:2311.16584. Entry (c, k) of a matrix is
the mean of softmax(f_n(x))_k at temperature 1, over clients n and samples x of class c in
the whole test part. Errors that clients share lie off the diagonal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from fedsuite.cli import main
from fedsuite.core.errors import RunError
from fedsuite.data import Split
from fedsuite.experiment.command_options import OutputOption, OverwriteOption, RunsArgument
from fedsuite.results.analysis_files import Table
from fedsuite.results.groups import METHOD, SEED, group_runs
from fedsuite.results.reader import Run, load_run
from simulations.fedal.final_models import FinalModels, all_outputs
from simulations.figures import DrawnOutput, escape_dollars

MOST_WITH_NUMBERS = 12
"""Most classes of a matrix with printed numbers."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Probabilities:
    """The matrix of one run at its last round.

    Entry (c, k) is the mean probability of class k on test samples of class c; NaN for a
    class without samples.
    """

    label: str
    seed: object
    method: str
    server_round: int
    matrix: Matrix

    @property
    def names(self) -> tuple[str, str, int]:
        """Words that distinguish the run."""
        return self.label, str(self.seed), self.server_round

    @property
    def right(self) -> float:
        """Mean probability of the true class, over the classes with samples."""
        return float(np.nanmean(np.diag(self.matrix)))


def class_probabilities(
    models: Iterable[nn.Module], data: Split, num_classes: int
) -> Matrix:
    """Return the mean softmax per class, over models and samples with one label each."""
    labels = data.labels.cpu()
    counts = torch.bincount(labels, minlength=num_classes).double()
    total, number = torch.zeros(num_classes, num_classes, dtype=torch.float64), 0
    for model in models:
        chances = all_outputs(model, data.features).double().softmax(dim=1).cpu()
        total.index_add_(0, labels, chances)
        number += 1
    matrix: Matrix = (total / (number * counts[:, None])).numpy()
    return matrix


def run_probabilities(label: str, run: Run) -> Probabilities:
    """Return the matrix of a run's clients; samples must have one label each."""
    final = FinalModels(run)
    test = final.data.test_set()
    if test.labels.ndim != 1 or not len(test):
        raise RunError(
            f"{run.path}: its test part has no rows with one class each: give runs of "
            "another data set"
        )
    on_device = Split(test.features.to(final.device), test.labels)
    matrix = class_probabilities(final.models(), on_device, final.data.num_classes)
    seed, method = run.experiment.get(SEED), str(run.experiment[METHOD])
    return Probabilities(label, seed, method, final.server_round, matrix)


def command(
    runs: RunsArgument,
    output: OutputOption = Path("analysis"),
    overwrite: OverwriteOption = False,
) -> None:
    """Show what clients' final models take test samples of each class for."""
    groups = group_runs([load_run(path) for path in runs])
    files = DrawnOutput.claim(output, "class_probabilities", overwrite=overwrite)
    matrices = [run_probabilities(g.label, run) for g in groups for run in g.runs]
    columns = (
        *("experiment", "seed", "round", "true class", "class", "probability"),
        "of the true class",
    )
    cells = [
        (*p.names, true, k, float(p.matrix[true, k]), float(right))
        for p in matrices
        for true, right in enumerate(np.diag(p.matrix))
        if np.isfinite(right)
        for k in range(len(p.matrix))
    ]
    note = (
        "Mean probability, over clients' final models and the whole test part's samples of "
        "the true class. Of the true class: that of the diagonal."
    )
    summary = Table(
        ("experiment", "seed", "round", "mean probability of the true class"),
        [(*p.names, p.right) for p in matrices],
        "Mean over classes of the matrix' diagonal; the table that is written holds all.",
    )
    files.draw(Table(columns, cells, note), matrix_figure(matrices), printed=summary)


def matrix_figure(matrices: Sequence[Probabilities]) -> Figure:
    """Draw the matrices, one line per method."""
    lines: dict[str, list[Probabilities]] = {}
    for one in matrices:
        lines.setdefault(one.method, []).append(one)
    columns = max(map(len, lines.values()))
    figure = Figure(figsize=(3.6 * columns + 0.8, 3.7 * len(lines)), layout="constrained")
    grid = figure.subplots(len(lines), columns, squeeze=False)
    image = None
    for row, line in zip(grid, lines.values(), strict=True):
        for axes, one in zip(row, line, strict=False):
            image = axes.imshow(one.matrix, cmap="Blues", vmin=0, vmax=1)
            _dress(axes, one)
        for axes in row[len(line) :]:
            axes.remove()
    assert image is not None
    figure.colorbar(image, ax=figure.axes, label="mean probability", shrink=0.6, aspect=30)
    return figure


def _dress(axes: Axes, one: Probabilities) -> None:
    where = f"seed {one.seed}, round {one.server_round}, diagonal {one.right:.2f}"
    label = escape_dollars(fill(one.label, width=44))
    axes.set_title(f"{label}\n{where}", fontsize=8)
    axes.set_xlabel("class")
    axes.set_ylabel("true class")
    classes = range(len(one.matrix))
    if len(classes) > MOST_WITH_NUMBERS:
        return
    axes.set_xticks(classes)
    axes.set_yticks(classes)
    for (true, k), value in np.ndenumerate(one.matrix):
        if np.isfinite(value):
            colour = "white" if value > 0.5 else "black"
            text = f"{value:.2f}".removeprefix("0")
            axes.text(k, true, text, ha="center", va="center", fontsize=6, color=colour)


if __name__ == "__main__":
    main(lambda: typer.run(command))
