"""How well clients' final models can be told apart by what they say on public data.

The cross-entropy that FedAL records is that of a discriminator in training, of one step per
exchange: it stays near log N where the clients can well be told apart. The probe is a fresh
network of the same widths that is trained to convergence. Nine tenths of one half of the
public rows train the probe, and its tenth says when to stop. The other half gives the
cross-entropy: log N where the clients cannot be told apart, 0 where each is known at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedsuite.analyses.final_models import FinalModels, all_outputs
from fedsuite.analyses.options import OutputOption, OverwriteOption
from fedsuite.analyses.output import Output, Table
from fedsuite.core.errors import RunError
from fedsuite.core.rng import numpy_stream
from fedsuite.experiment.command_options import RunsArgument
from fedsuite.results.groups import SEED, group_runs
from fedsuite.results.reader import Run, load_run
from fedsuite.strategies.distillation.discriminator import Discriminator, discriminator_loss

TEMPERATURE = 2.0
WIDTHS = (32, 265)
LEARNING_RATE = 1e-3
BATCH = 50
PATIENCE = 20
"""Passes without a better score on the tenth, after which the probe has converged."""

MOST_PASSES = 2000
FEWEST_ROWS = 20


@dataclass(frozen=True)
class Probed:
    """What a probe found.

    Parameters
    ----------
    cross_entropy
        Mean over clients and held-out rows, nats.
    accuracy
        Share of the held-out outputs whose client it names.
    passes
        Passes over its rows until it had its best score on the tenth.
    """

    cross_entropy: float
    accuracy: float
    passes: int


def probe(outputs: Tensor, seed: int) -> Probed:
    """Train a fresh discriminator on half of the outputs, and score it on the other half.

    Parameters
    ----------
    outputs
        Logits (clients, rows, classes), at least :data:`FEWEST_ROWS` rows.
    seed
        Seed of the halves, the batches, and the network.
    """
    clients, rows, classes = outputs.shape
    order = numpy_stream(seed, "discriminator-probe").permutation(rows)
    half = rows // 2
    train, stop, held = (
        outputs[:, torch.from_numpy(part.copy())].numpy()
        for part in np.split(order, [half - max(half // 10, 1), half])
    )
    labels = torch.arange(clients)
    network = Discriminator(
        classes,
        clients,
        widths=WIDTHS,
        learning_rate=LEARNING_RATE,
        temperature=TEMPERATURE,
        seed=seed,
    )

    def loss(logits: object) -> float:
        with torch.no_grad():
            given = torch.as_tensor(logits)
            return float(discriminator_loss(network.network, given, labels, TEMPERATURE))

    best, found = (float("inf"), 0), network.state()
    for number in range(1, MOST_PASSES + 1):
        drawn = numpy_stream(seed, "discriminator-probe/batches", number)
        shuffled = drawn.permutation(train.shape[1])
        for first in range(0, len(shuffled), BATCH):
            network.step(train[:, shuffled[first : first + BATCH]], labels.tolist())
        score = loss(stop)
        if score < best[0]:
            best, found = (score, number), network.state()
        elif number - best[1] >= PATIENCE:
            break
    network.restore(found)
    with torch.no_grad():
        chances = network.network((torch.as_tensor(held) / TEMPERATURE).softmax(dim=2))
    right = float((chances.argmax(dim=2) == labels[:, None]).double().mean())
    return Probed(loss(held), right, best[1])


def run_outputs(run: Run) -> Tensor:
    """Return what a run's final models say on its public rows."""
    final = FinalModels(run)
    features = final.data.public_set().features
    if len(features) < FEWEST_ROWS:
        raise RunError(
            f"{run.path}: it has {len(features)} public rows, and the probe needs "
            f"{FEWEST_ROWS}: give runs with public-size above that"
        )
    on_device = features.to(final.device)
    return torch.stack([all_outputs(model, on_device).cpu() for model in final.models()])


def command(
    runs: RunsArgument,
    output: OutputOption = Path("analysis"),
    overwrite: OverwriteOption = False,
) -> None:
    """Show how well a trained probe tells clients' final models apart."""
    groups = group_runs([load_run(path) for path in runs])
    files = Output.claim(output, "discriminator_probe", overwrite=overwrite)
    rows: list[tuple[str, str, float, float, float, int]] = []
    for group in groups:
        for run in group.runs:
            outputs, seed = run_outputs(run), int(run.experiment[SEED])
            found = probe(outputs, seed)
            chance = float(np.log(len(outputs)))
            measured = (found.cross_entropy, chance, found.accuracy, found.passes)
            rows.append((group.label, str(seed), *measured))
    columns = ("experiment", "seed", "cross-entropy", "log clients", "accuracy", "passes")
    note = (
        "Cross-entropy, nats, and accuracy on half of the public rows, of a discriminator "
        "trained to convergence on the other half. At log clients nobody can be told apart."
    )
    files.write(Table(columns, rows, note), probe_figure(rows))


def probe_figure(rows: Sequence[tuple[str, str, float, float, float, int]]) -> Figure:
    """Draw the cross-entropy of each run by experiment, and the value of guessing."""
    figure = Figure(figsize=(7, 1.6 + 0.4 * len({row[0] for row in rows})))
    axes = figure.subplots()
    names = list(dict.fromkeys(row[0] for row in rows))
    axes.plot([row[2] for row in rows], [names.index(row[0]) for row in rows], "o")
    for chance in sorted({row[3] for row in rows}):
        axes.axvline(chance, linestyle=":", color="grey")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("cross-entropy of the probe, nats; dotted: guessing")
    figure.set_layout_engine("constrained")
    return figure
