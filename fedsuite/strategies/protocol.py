"""What the loop, callbacks and checkpoints use of a strategy.

:class:`~fedsuite.strategies.base.FederatedStrategy` has it, and what goes around one
(:class:`~fedsuite.strategies.wrapper.StrategyWrapper`) passes it on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsuite.records import Arrays, ConfigValue
from fedsuite.strategies.extras import ServerExtras
from fedsuite.strategies.quorum import Quorum
from fedsuite.strategies.report import PhaseReport

if TYPE_CHECKING:
    from fedsuite.checkpoint import Checkpoint
    from fedsuite.strategies.callback import Callback


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
    def quorum(self) -> Quorum:
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


class StartableStrategy(Strategy):
    """Flower's ``start``, with callbacks and resume, for whatever has rounds to run."""

    def start(
        self: RoundStrategy,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        callbacks: Sequence["Callback"] = (),
        resume: "Checkpoint | None" = None,
    ) -> Result:
        """Run the rounds, as Flower's own ``start``, with callbacks and resume.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, timeout
            As in Flower.
        train_config, evaluate_config, evaluate_fn
            As in Flower.
        callbacks
            Called at the start, after each round, and at the end.
        resume
            Checkpoint to go on from.
        """
        from fedsuite.strategies.loop import run_rounds

        self.exchange_timeout = timeout
        return run_rounds(
            self,
            grid,
            initial_arrays,
            num_rounds=num_rounds,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate_fn,
            callbacks=callbacks,
            resume=resume,
        )
