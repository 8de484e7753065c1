"""What a callback sees of a run, and when."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsuite.core.metrics import fairness_report, has_score
from fedsuite.core.tasks import ACCURACY, CONFUSION_COLUMN, SCORES, Score
from fedsuite.messages.records import NEW
from fedsuite.rounds.report import ONE_CLASS_COLUMN, PhaseReport, Row
from fedsuite.rounds.round import RoundStrategy

_LONGEST_FIRST = sorted(SCORES.values(), key=lambda score: -len(score.name))


@dataclass
class RunState:
    """Where a run is now.

    A callback that sets ``stop_reason`` ends the run after the current round.
    """

    strategy: RoundStrategy
    grid: Grid
    num_rounds: int
    arrays: ArrayRecord
    server_round: int = 0
    result: Result = field(default_factory=Result)
    stop_reason: str | None = None


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round.

    Parameters
    ----------
    train, evaluate
        Reports of the two phases; None for a phase that the round did not have.
    new
        Report of the evaluation of clients that never train; None where there are none.
    server_metrics
        What the evaluation on the server returned.
    method_metrics
        Numbers that the method wants recorded.
    seconds, seconds_evaluate
        Wall-clock time, and what evaluation took of it.
    cpu_seconds, evaluation_cpu_seconds
        Processor time of the server's process: the round without its evaluation, which is
        no part of what a method costs, and the evaluation.
    """

    server_round: int
    num_rounds: int
    train: PhaseReport | None
    evaluate: PhaseReport | None
    server_metrics: Mapping[str, Any]
    method_metrics: Mapping[str, float]
    seconds: float
    cpu_seconds: float
    seconds_evaluate: float
    evaluation_cpu_seconds: float
    new: PhaseReport | None = None

    @property
    def phases(self) -> list[PhaseReport]:
        """The phases that the round had."""
        every = (self.train, self.evaluate, self.new)
        return [phase for phase in every if phase is not None]

    @cached_property
    def metrics(self) -> dict[str, float | int]:
        """All numbers of the round by name: what ``rounds.jsonl`` holds.

        Accuracies are fractions; ``accuracy_variance`` is of per cent.
        """
        values: dict[str, float | int] = {"round": self.server_round}
        for phase in self.phases:
            values.update({f"{phase.phase}_{k}": v for k, v in phase.means().items()})
        if self.evaluate is not None:
            medians = self.evaluate.medians().items()
            values.update({f"evaluate_{name}": value for name, value in medians})
            for rows in ("", "validation_"):
                for score in SCORES.values():
                    values.update(_scores(self.evaluate, score, rows))
            values.update(pooled(self.evaluate.rows))
            values.update(one_class(self.evaluate.rows))
        if self.new is not None:
            of_new: dict[str, float] = {}
            for score in SCORES.values():
                of_new |= _scores(self.new, score, "")
            values.update({f"{NEW}_{name}": value for name, value in of_new.items()})
        values.update({f"server_{k}": v for k, v in self.server_metrics.items()})
        values.update(self.method_metrics)
        values["clients_trained"] = len(self.train.rows) if self.train else 0
        values["replies_rejected"] = sum(len(phase.rejections) for phase in self.phases)
        values["bytes_down"] = sum(phase.bytes_down for phase in self.phases)
        values["bytes_up"] = sum(phase.bytes_up for phase in self.phases)
        # Evaluation is no part of what a method costs.
        values["bytes_down_train"] = self.train.bytes_down if self.train else 0
        values["seconds"] = self.seconds
        values["cpu_seconds"] = self.cpu_seconds
        values["seconds_evaluate"] = self.seconds_evaluate
        values["evaluation_cpu_seconds"] = self.evaluation_cpu_seconds
        return values


def _scores(phase: PhaseReport, score: Score, rows: str) -> dict[str, float]:
    """Return what is shown of a score; empty where no client speaks of it."""
    name = f"{rows}{score.column}"
    nobody_answered = name == "accuracy" and not phase.rows
    if not phase.is_named(name) and not nobody_answered:
        return {}
    # Another app may have another number of that name, such as per cent.
    numbers = [number for number in phase.accuracies(name) if score.can_be(number)]
    metrics = score_metrics(numbers, phase.num_to_score(name), score)
    return {f"{rows}{metric}": value for metric, value in metrics.items()}


def score_metrics(
    numbers: Sequence[float], num_asked: int = 0, score: Score = ACCURACY
) -> dict[str, float]:
    """Return mean, median, worst 10 % and variance over clients of a score.

    Where fewer clients have a number than were asked, ``NAME_clients`` and
    ``NAME_clients_asked`` count them.
    """
    metrics: dict[str, float] = {}
    name, factor = score.column, score.factor
    if numbers:
        report = fairness_report(factor * np.asarray(numbers), score)
        metrics = {
            f"{name}_mean": report.mean / factor,
            f"{name}_median": float(np.median(numbers)),
            f"{name}_worst10": report.worst_10 / factor,
            f"{name}_variance": report.variance,
        }
    if len(numbers) < num_asked:
        metrics[f"{name}_clients"] = len(numbers)
        metrics[f"{name}_clients_asked"] = num_asked
    return metrics


def pooled(rows: Sequence[Row]) -> dict[str, float]:
    """Return the scores over all clients' rows that follow from what clients told.

    Of confusion matrices their sum, and what is a function of it; of root mean squared
    errors the root of the mean over rows. An AUROC over all rows is no such function.
    """
    cells: dict[tuple[int, int], float] = {}
    for row in rows:
        for name, count in row.items():
            if match := CONFUSION_COLUMN.fullmatch(name):
                place = int(match[1]), int(match[2])
                cells[place] = cells.get(place, 0.0) + float(count)
    values = {f"pooled_confusion_{c}_{p}": n for (c, p), n in sorted(cells.items())}
    if sum(cells.values()):
        values |= {f"pooled_{name}": v for name, v in of_confusion(cells).items()}
    squares = [
        (float(row["rmse"]) ** 2, float(row["num_examples"]))
        for row in rows
        if has_score(row, "rmse")
    ]
    if squares:
        total = sum(count for _, count in squares)
        values["pooled_rmse"] = math.sqrt(sum(s * n for s, n in squares) / total)
    return values


def of_confusion(cells: Mapping[tuple[int, int], float]) -> dict[str, float]:
    """Return the scores that follow from rows by class and predicted class."""
    size = 1 + max(max(place) for place in cells)
    table = np.zeros((size, size))
    for place, count in cells.items():
        table[place] = count
    right, of_class, of_prediction = np.diag(table), table.sum(1), table.sum(0)
    there = of_class > 0
    recall = right[there] / of_class[there]
    either = of_class + of_prediction > 0
    f1 = 2 * right[either] / (of_class + of_prediction)[either]
    values = {
        "accuracy": float(right.sum() / table.sum()),
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
    }
    if size == len(recall) == 2:
        values |= {"specificity": float(recall[0]), "sensitivity": float(recall[1])}
    return values


def one_class(rows: Sequence[Row]) -> dict[str, float]:
    """Return the class that the clients' models take all test rows for; empty if none.

    Clients say so where a model does and is not right. Of a federation it holds where more
    than half of the clients with test rows say it of one class, and all others are right
    throughout.
    """
    tested = [row for row in rows if row.get("num_examples")]
    said = [row[ONE_CLASS_COLUMN] for row in tested if ONE_CLASS_COLUMN in row]
    right = [row for row in tested if row.get("accuracy") == 1.0]
    alike = len(set(said)) == 1 and len(said) + len(right) == len(tested)
    if not alike or 2 * len(said) <= len(tested):
        return {}
    return {"evaluate_one_class": float(said[0])}


def reported_as(metric: str) -> str:
    """Return the phase and column that a metric of ``rounds.jsonl`` is made of.

    As in ``evaluate_loss``; ``accuracy_mean`` is made of ``evaluate_accuracy``.
    """
    metric = metric.removesuffix("_median") if metric.startswith("evaluate_") else metric
    for rows in ("validation_", ""):
        for score in _LONGEST_FIRST:
            if metric.startswith(f"{rows}{score.column}_"):
                return f"evaluate_{rows}{score.column}"
    return metric


class Callback:
    """Base of callbacks: each method does nothing until it is overridden."""

    def on_start(self, state: RunState) -> None:
        """Hear that the rounds are about to start."""

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Hear that a round is over."""

    def on_end(self, state: RunState, error: BaseException | None) -> None:
        """Hear that the run is over; ``error`` is what ended it early, if anything did."""
