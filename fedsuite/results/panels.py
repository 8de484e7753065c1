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

from fedsuite.core.metrics import fairness_report, of_clients
from fedsuite.core.tasks import SCORES, Score
from fedsuite.results.reader import Run

DECLARED = frozenset(score.column for score in SCORES.values())
"""Scores that ``rounds.jsonl`` has means of."""

Curve = dict[int, float]
"""Values by round."""

PHASES = ("train_", "evaluate_")


class Panel(NamedTuple):
    """One panel of a column of ``rounds.jsonl``.

    The column ``beside`` is drawn too, thin and dotted. No band leaves ``bounds``.
    """

    key: str
    title: str
    label: str
    scale: float
    beside: str = ""
    bounds: tuple[float, float] = (-np.inf, np.inf)


def score_panels(score: Score) -> tuple[Panel, ...]:
    """Return the panels of a score: mean, worst clients, validation, after training."""
    column, unit = score.column, f" ({score.unit})" if score.unit else ""
    trained = "After local training; dotted, hollow: after the round"

    def panel(key: str, title: str, label: str = score.label, beside: str = "") -> Panel:
        return Panel(key, title, label, score.factor, beside, score.bounds)

    return (
        panel(f"{column}_mean", f"Mean {score.title} over clients"),
        panel(
            f"{column}_worst10",
            f"{score.heading} of the worst tenth, at least one client",
        ),
        panel(
            f"validation_{column}_mean",
            "Mean over clients, validation rows; dotted: test rows",
            beside=f"{column}_mean",
        ),
        *(
            panel(
                f"train_trained_{part}{column}",
                trained,
                f"{score.title}, {rows}{unit}",
                f"evaluate_{part}{column}",
            )
            for part, rows in (("", "own test rows"), ("whole_test_", "whole test part"))
        ),
    )


PANELS = (
    Panel("evaluate_loss", "Evaluation loss", "loss", 1),
    Panel("train_loss", "Training loss", "loss", 1),
    Panel("output_divergence", "Divergence of clients' outputs", "nats", 1),
    Panel(
        "discriminator_loss",
        "Discriminator's loss; dotted: log N",
        "nats",
        1,
        "log_clients",
    ),
)
"""Panels of the curves that are of no score."""

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


def score_curves(run: Run, score: Score) -> dict[str, Curve]:
    """Return a run's curves of a score's panels, each client counting once.

    Of a score that ``rounds.jsonl`` has no mean of, such as ``whole_test_accuracy``, they
    are made of the clients' rows.
    """
    curves = client_curves(run, score_panels(score))
    column = score.column
    if column not in DECLARED:
        reports = {
            scores.server_round: fairness_report(scores.percent, scores.score)
            for scores in run.scores(column, last=max(len(run.rounds), 1))
            if scores.of
        }
        for name, ending in (("mean", "mean"), ("worst_10", "worst10")):
            curves[f"{column}_{ending}"] = {
                server_round: getattr(report, name) / score.factor
                for server_round, report in reports.items()
            }
    return curves


def by_seed(
    curves: Sequence[Mapping[str, Curve]], key: str
) -> tuple[list[int], NDArray[np.float64]]:
    """Return common rounds and (seeds, rounds) values of the runs with the column."""
    columns = [curve[key] for curve in curves if curve[key]]
    if not columns:
        return [], np.empty((0, 0))
    rounds = sorted(set.intersection(*(set(column) for column in columns)))
    return rounds, np.array([[column[r] for r in rounds] for column in columns])


def left_out_words(runs: Iterable[Run], score: Score) -> str:
    """Return in words the fewest clients that a mean is over; empty where it is all."""
    scored, asked = (f"{score.column}_clients{ending}" for ending in ("", "_asked"))
    short = [
        (row[scored] / row[asked], row)
        for run in runs
        for row in run.rounds
        if row.get(asked) and row.get(scored) is not None
    ]
    if not short:
        return ""
    worst = min(short, key=itemgetter(0))[1]
    words = of_clients(worst[scored], worst[asked])
    more = f", fewer than all in {len(short) - 1} more" if len(short) > 1 else ""
    return f"{score.heading} of {words} at round {worst['round']}{more}"


def pooled_curve(run: Run, key: str) -> Curve:
    """Return a column of ``rounds.jsonl``."""
    rounds, values = run.column(key)
    return dict(zip(rounds.tolist(), values.tolist(), strict=True))
