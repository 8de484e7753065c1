"""Flower's ``start`` for all strategies and wrappers."""

from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsuite.rounds.checkpoint import Checkpoint
from fedsuite.rounds.events import Callback
from fedsuite.rounds.loop import run_rounds
from fedsuite.rounds.protocol import RoundStrategy


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
        callbacks: Sequence[Callback] = (),
        resume: Checkpoint | None = None,
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
