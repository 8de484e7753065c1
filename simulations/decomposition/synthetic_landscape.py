"""FedAvg with few and many clients on a model of two weights (figure 3a of the paper).

W. Chen, Q. Qiu, arXiv:2503.08652, section 7.3: two Gaussians N([2, 2], S) and
N([-2, -2], S), a linear model of two weights without bias, the mean squared error, and
FedAvg with 5 and with 25 models. The paper gives no S, labels, sizes, rate or start. Here S
= 4 I and labels are 1 and -1. Half of each client's samples come from either Gaussian. Each
repetition draws the clients' data anew. All start at the same point. Steps follow the
gradient of half the squared error, because with the full error a rate of 0.05 diverges on
some draws. The paths are drawn over the expected loss

    L(w) = E (w'x - y)^2 / 2 = (w'(S + c c') w - 2 w'c + 1) / 2,        c = [2, 2].

For independent clients the variance of averaged weights falls by 5 from 5 models to 25.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsuite.cli import main
from fedsuite.core.rng import numpy_stream
from fedsuite.experiment.command_options import OutputOption, OverwriteOption
from fedsuite.results.analysis_files import Table
from fedsuite.results.plots import PALETTE, dress
from simulations.figures import DrawnOutput, SeedOption, panels, whole_rounds

CENTRE = np.array([2.0, 2.0])
SECOND_MOMENT = 4.0 * np.eye(2) + np.outer(CENTRE, CENTRE)
OPTIMUM = np.linalg.solve(SECOND_MOMENT, CENTRE)
START = np.array([-0.2, 0.4])
MODELS = (5, 25)
SHOWN = 5
"""Number of repetitions with drawn paths."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Samples per client, and full-batch gradient descent on half the squared error."""

    samples: int = 20
    learning_rate: float = 0.05
    steps: int = 5
    rounds: int = 20


def expected_loss(weights: Array) -> Array:
    """Return the expected loss of weights, shape (..., 2)."""
    quadratic = np.einsum("...i,ij,...j->...", weights, SECOND_MOMENT, weights)
    loss: Array = (quadratic - 2 * weights @ CENTRE + 1) / 2
    return loss


def draw_clients(
    num_clients: int, samples: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return inputs (clients, samples, 2) and labels (samples) of 1 and -1 in turn."""
    labels = np.where(np.arange(samples) % 2 == 0, 1.0, -1.0)
    noise = rng.normal(0, 2.0, (num_clients, samples, 2))
    return noise + labels[:, None] * CENTRE, labels


def averaged_path(inputs: Array, labels: Array, settings: Settings) -> Array:
    """Return the averaged weights after each round, the start first: (rounds + 1, 2)."""
    path = [START]
    for _ in range(settings.rounds):
        weights = np.repeat(path[-1][None], len(inputs), axis=0)
        for _ in range(settings.steps):
            errors = np.einsum("csi,ci->cs", inputs, weights) - labels
            gradients = np.einsum("csi,cs->ci", inputs, errors) / len(labels)
            weights = weights - settings.learning_rate * gradients
        path.append(weights.mean(axis=0))
    return np.array(path)


def variance_of(paths: Array) -> Array:
    """Return the population variance over repetitions, summed over both weights.

    ``paths`` has the shape (repetitions, rounds + 1, 2), the result (rounds + 1).
    """
    variance: Array = paths.var(axis=0).sum(axis=-1)
    return variance


def command(
    output: OutputOption = Path("analysis"),
    repetitions: Annotated[int, typer.Option(min=2, help="Draws of the data.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of FedAvg.")] = 20,
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Follow FedAvg with 5 and 25 models over the loss of a model of two weights."""
    files = DrawnOutput.claim(output, "synthetic_landscape", overwrite=overwrite)
    settings = Settings(rounds=rounds)
    paths = {}
    for count in MODELS:
        rng = numpy_stream(seed, f"synthetic-landscape-{count}")
        drawn = [draw_clients(count, settings.samples, rng) for _ in range(repetitions)]
        paths[count] = np.array([averaged_path(*data, settings) for data in drawn])
    few, many = (variance_of(paths[count]) for count in MODELS)
    losses = [expected_loss(paths[count]).mean(axis=0) for count in MODELS]
    # Round 0 is one point, without variance.
    numbers = [few[1:], many[1:], few[1:] / many[1:], *(loss[1:] for loss in losses)]
    rows = list(zip(range(1, rounds + 1), *(n.tolist() for n in numbers), strict=True))
    columns = (
        *("round", "variance, 5 models", "variance, 25 models", "ratio"),
        *("loss, 5 models", "loss, 25 models"),
    )
    note = (
        f"Variance of the averaged weights and mean expected loss over {repetitions} draws "
        f"of the data; least loss {expected_loss(OPTIMUM):.4f}. Independent clients: "
        "expected ratio 5, scattered widely over so few draws."
    )
    files.draw(Table(columns, rows, note), landscape_figure(paths))


def landscape_figure(paths: dict[int, Array]) -> Figure:
    """Draw some paths over the contours, and the variance over rounds."""
    figure, (*maps, right) = panels(3, 3, 4.0, 4.0)
    everywhere = np.concatenate([p[:SHOWN].reshape(-1, 2) for p in paths.values()])
    low, high = everywhere.min(axis=0) - 0.08, everywhere.max(axis=0) + 0.08
    for index, (count, draws) in enumerate(paths.items()):
        _draw_contours(maps[index], low, high)
        for path in draws[:SHOWN]:
            maps[index].plot(*path.T, ".-", color=PALETTE[index], linewidth=1, alpha=0.8)
        maps[index].plot(*START, "o", color="black", markersize=6)
        maps[index].plot(*OPTIMUM, "*", color="black", markersize=12)
        title = f"Average of {count} models, {min(SHOWN, len(draws))} draws"
        dress(maps[index], title, "first weight", "second weight")
        rounds = np.arange(1, draws.shape[1])
        label = f"{count} models"
        right.plot(rounds, variance_of(draws)[1:], color=PALETTE[index], label=label)
    right.set_ylim(bottom=0)
    whole_rounds(right)
    dress(right, "Variance of the averaged weights", "round", "variance")
    right.legend(frameon=False)
    return figure


def _draw_contours(axes: Axes, low: Array, high: Array) -> None:
    first, second = (np.linspace(low[axis], high[axis], 120) for axis in (0, 1))
    values = expected_loss(np.stack(np.meshgrid(first, second), axis=-1))
    least, most = float(expected_loss(OPTIMUM)), float(values.max())
    levels = least + (most - least) * np.linspace(0.05, 1, 12) ** 2
    drawn = axes.contour(first, second, values, levels=levels, colors="0.6", linewidths=0.8)
    axes.clabel(drawn, fontsize=7, fmt="%.2f")


if __name__ == "__main__":
    main(lambda: typer.run(command))
