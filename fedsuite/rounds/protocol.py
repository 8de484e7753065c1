"""What the loop, callbacks and checkpoints use of a strategy.

:class:`~fedsuite.rounds.base.FederatedStrategy` has it, and what goes around one
(:class:`~fedsuite.rounds.wrapper.StrategyWrapper`) passes it on.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedsuite.messages.records import Arrays, ConfigValue
from fedsuite.rounds.quorum import Quorum
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.server_step import ServerExtras


class RoundStrategy(Protocol):
    """A strategy whose rounds can be run, recorded, and resumed."""

    num_rounds: int
    exchange_timeout: float
    client_versions: dict[int, str]
    kept_versions: dict[int, str]

    @property
    def reports(self) -> Mapping[str, PhaseReport]:
        """Reports of the round's phases."""

    @property
    def round_metrics(self) -> Mapping[str, float]:
        """Numbers that the method wants recorded."""

    @property
    def extras(self) -> ServerExtras:
        """Server momentum and FedVARP."""

    @property
    def judge(self) -> Quorum:
        """Judge of the rounds."""

    def summary(self) -> None:
        """Log the settings."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask clients to train."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new global arrays, None for the old ones, and metrics."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask clients to evaluate."""

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean metrics."""

    def finish_round(self) -> None:
        """Do what the method must do after a round."""

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return what must be remembered between rounds."""

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take back what :meth:`state` returned."""
