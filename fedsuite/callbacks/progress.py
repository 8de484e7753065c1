"""Progress of a run: one line per round, and the time left on a terminal."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from typing_extensions import override

from fedsuite.core.metrics import of_clients, tail_words
from fedsuite.core.progress import ROUNDS, Work, round_words
from fedsuite.core.tasks import ACCURACY, PER_CENT, Score
from fedsuite.rounds.events import Callback, RoundReport, RunState

ALWAYS_BELOW = 50
"""Most rounds of a run that prints each round."""

SECONDS_BETWEEN = 2.0
"""Least pause between the lines of longer runs."""


class Progress(Callback):
    """Prints round, loss, mean score, the worst clients' score, and how many were rejected.

    Parameters
    ----------
    write
        Function that prints a line.
    score
        The run's main score.
    """

    def __init__(self, write: Callable[[str], None], score: Score = ACCURACY) -> None:
        self._write = write
        self._score = score
        self._last = 0.0
        self._words = ""
        self._rounds = Work(ROUNDS)
        self._shown = ExitStack()

    @override
    def on_start(self, state: RunState) -> None:
        self._rounds = Work(ROUNDS, state.num_rounds, state.server_round)
        self._shown.enter_context(self._rounds)

    @override
    def on_end(self, state: RunState, error: BaseException | None) -> None:
        self._shown.close()

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        self._rounds.show(report.server_round)
        self._words = self._of_evaluation(report)
        due = (
            report.num_rounds <= ALWAYS_BELOW
            or report.server_round in (1, report.num_rounds)
            or time.monotonic() - self._last >= SECONDS_BETWEEN
        )
        if due:
            self._last = time.monotonic()
            self._write(round_line(report, self._words))
        if state.stop_reason is not None:
            self._write(f"stopping after round {report.server_round}: {state.stop_reason}")

    def _of_evaluation(self, report: RoundReport) -> str:
        """Return words on the last evaluation, perhaps of an earlier round."""
        words = score_words(report, self._score)
        if not words and self._words:
            scored = report.evaluate is not None and report.evaluate.rows
            return f"no {self._score.title}" if scored else self._words
        return words


def score_words(report: RoundReport, score: Score = ACCURACY) -> str:
    """Return the scores of a round in words; empty without an evaluation.

    Where clients have validation rows these are shown, for they decide what is chosen.
    """
    validation = f"validation_{score.column}"
    validated = any(name.startswith(f"{validation}_") for name in report.metrics)
    name = validation if validated else score.column
    title = f"validation {score.title}" if validated else score.title
    metrics = report.metrics
    num_scored = int(metrics.get(f"{name}_clients", 0))
    short = of_clients(num_scored, int(metrics.get(f"{name}_clients_asked", 0)))
    if f"{name}_mean" not in metrics:
        return f"mean {title} of {short}" if short else ""
    mean = f"mean {title} {_number(score, metrics[f'{name}_mean'])}"
    if not short and report.evaluate is not None:
        num_scored = len(report.evaluate.rows)
    number = _number(score, metrics[f"{name}_worst10"])
    worst = f"{tail_words('worst', 10, num_scored)} {number}"
    return f"{mean} of {short}  {worst}" if short else f"{mean}  {worst}"


def _number(score: Score, value: float) -> str:
    """Return a number as wide as others, so that lines of rounds stand below each other."""
    return f"{value:6.2%}" if score.unit == PER_CENT else score.shown(value)


def round_line(report: RoundReport, scored: str) -> str:
    """Return a round in one line.

    Parameters
    ----------
    report
        The round.
    scored
        Words on the last evaluation, perhaps of an earlier round.
    """
    metrics = report.metrics
    parts = [round_words(report.server_round, report.num_rounds)]
    if "train_loss" in metrics:
        parts.append(f"training loss {metrics['train_loss']:.4f}")
    if scored:
        parts.append(scored)
    if "epsilon" in metrics:
        parts.append(f"epsilon {metrics['epsilon']:.4g}")
    if "virtual_seconds" in metrics:
        parts.append(f"virtual {metrics['virtual_seconds'] / 3600:.3g} h")
    if metrics["replies_rejected"]:
        kinds = Counter(r.kind for phase in report.phases for r in phase.rejections)
        causes = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        parts.append(f"{metrics['replies_rejected']} replies rejected ({causes})")
    parts.append(f"{report.seconds:.2f} s")
    return "  ".join(parts)
