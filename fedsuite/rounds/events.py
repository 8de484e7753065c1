"""What a callback sees of a run, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsuite.core.metrics import fairness_report
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.round import RoundStrategy


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

    @property
    def phases(self) -> list[PhaseReport]:
        """The phases that the round had."""
        return [phase for phase in (self.train, self.evaluate) if phase is not None]

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
                found = _scores(self.evaluate, f"{rows}accuracy")
                values.update({f"{rows}{k}": v for k, v in found.items()})
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


def _scores(phase: PhaseReport, name: str) -> dict[str, float]:
    """Return what is shown of an accuracy; empty where no client speaks of it."""
    told = phase.is_named(name)
    nobody_answered = name == "accuracy" and not phase.rows
    if not told and not nobody_answered:
        return {}
    return accuracy_metrics(phase.accuracies(name), phase.num_to_score(name))


def accuracy_metrics(accuracies: Sequence[float], num_asked: int = 0) -> dict[str, float]:
    """Return mean, median, worst 10 % and variance over clients of accuracies in [0, 1].

    Where fewer clients have an accuracy than were asked, ``accuracy_clients`` and
    ``accuracy_clients_asked`` count them.
    """
    metrics: dict[str, float] = {}
    if accuracies:
        report = fairness_report(100.0 * np.asarray(accuracies))
        metrics = {
            "accuracy_mean": report.mean / 100.0,
            "accuracy_median": float(np.median(accuracies)),
            "accuracy_worst10": report.worst_10 / 100.0,
            "accuracy_variance": report.variance,
        }
    if len(accuracies) < num_asked:
        metrics["accuracy_clients"] = len(accuracies)
        metrics["accuracy_clients_asked"] = num_asked
    return metrics


def reported_as(metric: str) -> str:
    """Return the phase and column that a metric of ``rounds.jsonl`` is made of.

    As in ``evaluate_loss``; ``accuracy_mean`` is made of ``evaluate_accuracy``.
    """
    metric = metric.removesuffix("_median") if metric.startswith("evaluate_") else metric
    for column in ("validation_accuracy", "accuracy"):
        if metric.startswith(f"{column}_"):
            return f"evaluate_{column}"
    return metric


class Callback:
    """Base of callbacks: each method does nothing until it is overridden."""

    def on_start(self, state: RunState) -> None:
        """Hear that the rounds are about to start."""

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Hear that a round is over."""

    def on_end(self, state: RunState, error: BaseException | None) -> None:
        """Hear that the run is over; ``error`` is what ended it early, if anything did."""
