"""Panels of the curves, and the numbers that they show.

A column of ``rounds.jsonl`` that begins with a phase is a mean that weights clients by
examples. Curves show the mean in which each client counts once, from ``clients.jsonl``, but
for the panels :data:`POOLED`.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.metrics import of_clients
from fedsuite.results.reader import Run

Curve = dict[int, float]
"""Values by round."""

PHASES = ("train_", "evaluate_")


class Panel(NamedTuple):
    """One panel of a column of ``rounds.jsonl``.

    The column ``beside`` is drawn too, thin and dotted.
    """

    key: str
    title: str
    label: str
    scale: float
    beside: str = ""


PANELS = (
    Panel("accuracy_mean", "Mean accuracy over clients", "accuracy (%)", 100),
    Panel("accuracy_worst10", "Accuracy of the worst 10 % of clients", "accuracy (%)", 100),
    Panel(
        "validation_accuracy_mean",
        "Mean over clients, validation rows; dotted: test rows",
        "accuracy (%)",
        100,
        "accuracy_mean",
    ),
    Panel("evaluate_loss", "Evaluation loss", "loss", 1),
    Panel("train_loss", "Training loss", "loss", 1),
    Panel(
        "train_trained_accuracy",
        "After local training; dotted, hollow: after the round",
        "accuracy, own test rows (%)",
        100,
        "evaluate_accuracy",
    ),
    Panel(
        "train_trained_whole_test_accuracy",
        "After local training; dotted, hollow: after the round",
        "accuracy, whole test part (%)",
        100,
        "evaluate_whole_test_accuracy",
    ),
    Panel("output_divergence", "Divergence of clients' outputs", "nats", 1),
    Panel(
        "discriminator_loss",
        "Discriminator's loss; dotted: log N",
        "nats",
        1,
        "log_clients",
    ),
)
"""Panels of the curves."""

POOLED = (
    Panel(
        "evaluate_received_training_loss",
        "Received model on all training data",
        "loss",
        1,
    ),
)
"""Panels of means over all rows, whichever client holds the rows."""


def client_curves(run: Run, panels: Iterable[Panel]) -> dict[str, Curve]:
    """Return a run's curves of the panels, each client counting once."""
    keys = {key for panel in panels for key in (panel.key, panel.beside) if key}
    means = run.client_means(key for key in keys if key.startswith(PHASES))
    return {key: means[key] if key in means else pooled_curve(run, key) for key in keys}


def by_seed(
    curves: Sequence[Mapping[str, Curve]], key: str
) -> tuple[list[int], NDArray[np.float64]]:
    """Return common rounds and (seeds, rounds) values of the runs with the column."""
    columns = [curve[key] for curve in curves if curve[key]]
    if not columns:
        return [], np.empty((0, 0))
    rounds = sorted(set.intersection(*(set(column) for column in columns)))
    return rounds, np.array([[column[r] for r in rounds] for column in columns])


def left_out_words(runs: Iterable[Run]) -> str:
    """Return in words the fewest clients that a mean is over; empty where it is all."""
    short = [
        (row["accuracy_clients"] / row["accuracy_clients_asked"], row)
        for run in runs
        for row in run.rounds
        if row.get("accuracy_clients_asked") and row.get("accuracy_clients") is not None
    ]
    if not short:
        return ""
    worst = min(short, key=itemgetter(0))[1]
    words = of_clients(worst["accuracy_clients"], worst["accuracy_clients_asked"])
    more = f", fewer than all in {len(short) - 1} more" if len(short) > 1 else ""
    return f"Accuracies of {words} at round {worst['round']}{more}"


def pooled_curve(run: Run, key: str) -> Curve:
    """Return a column of ``rounds.jsonl``."""
    rounds, values = run.column(key)
    return dict(zip(rounds.tolist(), values.tolist(), strict=True))
