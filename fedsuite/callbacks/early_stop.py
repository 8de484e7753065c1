"""Early stop of a run whose metric no longer improves."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.metrics import has_score
from fedsuite.core.tasks import score_of_metric
from fedsuite.rounds.events import Callback, RoundReport, RunState, reported_as

logger = logging.getLogger(__name__)

_FEWEST = 3
"""With fewer clients nobody can tell which of them is odd."""


def higher_is_better(metric: str) -> bool:
    """Return whether higher is better; losses, variances and costs should fall.

    Of a declared score, as it is declared.
    """
    if score := score_of_metric(metric):
        return score.higher
    falling = ("loss", "variance", "std", "bytes", "seconds", "rejected")
    return not any(word in metric for word in falling)


class Best:
    """Follows the best value of a metric.

    A mean over clients is followed client by client: a round is better than the best one if
    the clients gained since then, but for the fifth of them (of three to nine the one) that
    gained most and the fifth that lost most. So no fifth of the clients chooses the round,
    whatever it says and when. A mean as it stands would be moved by one of n as far as the
    metric goes: an accuracy by 1/n, a loss without bound. With fewer than three clients in
    both rounds, and for what is no such mean, the value decides.

    A round that lacks the metric, because few replies have it, is passed over.

    Parameters
    ----------
    metric
        Name in ``rounds.jsonl``.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.value: float | None = None
        self.server_round = 0
        self._clients: dict[str, float] = {}
        self._looked = False

    def improved(self, report: RoundReport) -> bool | None:
        """Return whether a round is the best so far, None for a round without the metric.

        Raises
        ------
        ConfigError
            If no reply to the first evaluation has the metric, whose name is then misspelt.
        """
        value = report.metrics.get(self.metric)
        if value is None:
            self._look_for_it(report)
            return None
        self._looked = True
        if math.isnan(value):
            return False
        clients = _numbers_of(self.metric, report)
        gain = self._gain(value, clients)
        better = gain > 0 if higher_is_better(self.metric) else gain < 0
        if better or self.value is None:
            self.value, self.server_round = value, report.server_round
            self._clients = clients
            return True
        return False

    def _gain(self, value: float, clients: Mapping[str, float]) -> float:
        """Return how far a round is above the best one, in a sum or the metric's unit."""
        before = self._clients
        gains = sorted(clients[k] - before[k] for k in clients if k in before)
        if len(gains) < _FEWEST:
            return value - (self.value or 0.0)
        odd = max(len(gains) // 5, 1)
        return sum(gains[odd:-odd])

    def remember(self) -> list[Any]:
        """Return the best value, its round, and the clients' numbers then."""
        return [self.value, self.server_round, self._clients]

    def recall(
        self, value: float | None, server_round: int, clients: Mapping[str, float]
    ) -> None:
        """Restore the state that :meth:`remember` returned.

        Raises
        ------
        TypeError, ValueError
            If they are no numbers.
        """
        self.value = None if value is None else float(value)
        self.server_round = int(server_round)
        self._clients = {str(k): float(number) for k, number in dict(clients).items()}

    def _look_for_it(self, report: RoundReport) -> None:
        """Judge, once, whether a metric that a round lacks is misspelt."""
        evaluated = report.evaluate is not None and report.evaluate.rows
        if self._looked or not evaluated or report.server_round == report.num_rounds:
            return
        self._looked = True
        phase, _, column = reported_as(self.metric).partition("_")
        phases = [one for one in report.phases if one.phase == phase]
        if not any(one.is_named(column) for one in phases):
            raise ConfigError(
                f"no metric {self.metric!r} to follow (early-stop-metric or "
                f"best-model-metric): rounds have {', '.join(report.metrics)}"
            )
        logger.warning(
            "round %d: %s is not there to follow: too few clients report a number that "
            "counts; such rounds are passed over, here and later",
            report.server_round,
            self.metric,
        )


def _numbers_of(metric: str, report: RoundReport) -> dict[str, float]:
    """Return the numbers by client that a mean is of; empty of what is no such mean."""
    phase, _, column = reported_as(metric).partition("_")
    if metric not in (f"{phase}_{column}", f"{column}_mean"):
        return {}
    return {
        str(row["client"]): float(row[column])
        for one in report.phases
        for row in one.rows
        if one.phase == phase and has_score(row, column)
    }


class EarlyStop(Callback):
    """Stops the run after a number of evaluations without improvement.

    Parameters
    ----------
    metric
        Name in ``rounds.jsonl``.
    patience
        Evaluations without improvement to wait.
    """

    name = "early-stop"

    def __init__(self, metric: str, patience: int) -> None:
        self._best = Best(metric)
        self._patience = patience
        self._without = 0

    @override
    def on_start(self, state: RunState) -> None:
        self._judge(state)

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        improved = self._best.improved(report)
        if improved is None:
            return
        self._without = 0 if improved else self._without + 1
        self._judge(state)

    def _judge(self, state: RunState) -> None:
        if self._without >= self._patience:
            state.stop_reason = (
                f"{self._best.metric} has not improved on {self._best.value:g} since round "
                f"{self._best.server_round}"
            )

    def remember(self) -> Any:
        """Return the state of the best value, and the evaluations since."""
        return [*self._best.remember(), self._without]

    def recall(self, value: Any) -> None:
        """Restore the state that :meth:`remember` returned."""
        *best, without = value
        self._best.recall(*best)
        self._without = int(without)
