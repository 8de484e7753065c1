"""The strategy that all methods stand on.

A method overrides :meth:`FederatedStrategy.train_exchange`, which says what is sent and
what must come back, :meth:`FederatedStrategy.take`, which takes in one reply, and
:meth:`FederatedStrategy.aggregate`, which makes the new model of those that were taken.
"""

from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from typing_extensions import override

from fedsuite.messages.records import EVALUATE, TRAIN
from fedsuite.rounds.checkpoint import Checkpoint
from fedsuite.rounds.events import Callback, RunState
from fedsuite.rounds.loop import EvaluateFn, ShouldStop, run_rounds
from fedsuite.rounds.round import RoundStrategy
from fedsuite.workarounds.prompt_grid import PromptGrid


class FederatedStrategy(RoundStrategy):
    """Base of all strategies."""

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: ShouldStop | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        resume: Checkpoint | None = None,
    ) -> Result:
        """Run the rounds, as Flower's own ``start``, with callbacks and resume.

        Each call is a run of its own: nothing is left of an earlier one.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, timeout
            As in Flower.
        train_config, evaluate_config, evaluate_fn
            As in Flower.
        should_stop
            As in Flower from 1.43 on: called at the end of each round with its number and
            the result so far, which it must not change; true ends the run there.
        callbacks
            Called at the start, after each round, and at the end, also of a run that fails.
        resume
            Checkpoint from which the run goes on.
        """
        if self._begun:
            self.begin_afresh()
        self.num_rounds, self._start_timeout = num_rounds, timeout
        # One record for all rounds, as in Flower: what an overridden configure_* writes
        # stays.
        configs = {
            TRAIN: ConfigRecord() if train_config is None else train_config,
            EVALUATE: ConfigRecord() if evaluate_config is None else evaluate_config,
        }
        state = RunState(self, PromptGrid.around(grid), num_rounds, initial_arrays)
        given = (evaluate_fn, should_stop, callbacks, resume)
        return run_rounds(state, timeout, configs, *given)
