"""Early stop of a run whose metric no longer improves."""

import math
from typing import Any

from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.rounds.events import Callback, RoundReport, RunState


def higher_is_better(metric: str) -> bool:
    """Return whether higher is better; losses, variances and costs should fall."""
    falling = ("loss", "variance", "std", "bytes", "seconds", "rejected")
    return not any(word in metric for word in falling)


class Best:
    """Follows the best value of a metric.

    Parameters
    ----------
    metric
        Name in ``rounds.jsonl``.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.value: float | None = None
        self.server_round = 0

    def recall(self, value: float | None, server_round: int) -> None:
        """Take the best value and its round back from a checkpoint.

        Raises
        ------
        TypeError, ValueError
            If they are no numbers.
        """
        self.value = None if value is None else float(value)
        self.server_round = int(server_round)

    def improved(self, report: RoundReport) -> bool | None:
        """Return whether a round is the best so far, None for a round without the metric.

        Raises
        ------
        ConfigError
            If no evaluated round has had the metric, whose name is then misspelt. Later a
            round may lack it, because no client's accuracy counts.
        """
        value = report.metrics.get(self.metric)
        if value is None:
            unknown = self.value is None and report.server_round < report.num_rounds
            if unknown and report.evaluate is not None and report.evaluate.rows:
                raise ConfigError(
                    f"no metric {self.metric!r} to follow (early-stop-metric or "
                    f"best-model-metric): rounds have {', '.join(report.metrics)}"
                )
            return None
        if math.isnan(value):
            return False
        better = self.value is None or (
            value > self.value if higher_is_better(self.metric) else value < self.value
        )
        if better:
            self.value, self.server_round = value, report.server_round
        return better


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
        self.follows = metric
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
        """Return the best value, the round of the best value, and the evaluations since."""
        return [self._best.value, self._best.server_round, self._without]

    def recall(self, value: Any) -> None:
        """Restore the state that :meth:`remember` returned."""
        best, server_round, without = value
        self._best.recall(best, server_round)
        self._without = int(without)
