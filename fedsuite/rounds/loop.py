"""The rounds of a run: Flower's own loop, with callbacks, resume, and an orderly end."""

import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsuite.core.errors import described
from fedsuite.core.logs import ServerLogger, log_scope
from fedsuite.messages.records import EVALUATE, TRAIN
from fedsuite.messages.statistics import buffers_declared
from fedsuite.rounds.checkpoint import Checkpoint
from fedsuite.rounds.events import Callback, RoundReport, RunState, reported_as
from fedsuite.rounds.parts import StrategyParts
from fedsuite.rounds.telling import tell, tell_end, tell_start
from fedsuite.workarounds.prompt_grid import PromptGrid

logger = ServerLogger(__name__)

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class RoundLoop(StrategyParts):
    """A strategy that runs its rounds."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
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
            Called at the start, after each round, and at the end, also of a run that fails.
        resume
            Checkpoint from which the run goes on.
        """
        grid = PromptGrid.around(grid)
        self.num_rounds, self.exchange_timeout = num_rounds, timeout
        self.chosen_by = {reported_as(c.follows) for c in callbacks if c.follows}
        # One record for all rounds, as in Flower: what an overridden configure_* writes
        # stays.
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        state = RunState(self, grid, num_rounds, arrays=initial_arrays)
        state.result.arrays = initial_arrays
        if resume is not None:
            resume.restore(state)
            # Clients may be at work for who wrote the checkpoint.
            self.attempt = self.attempt or time.time_ns() // 1_000_000
        error: BaseException | None = None
        try:
            for callback in callbacks:
                callback.on_start(state)
            tell_start(state, {TRAIN: train_config, EVALUATE: evaluate_config})
            self.summary()
            began = time.monotonic()
            if evaluate_fn and resume is None:
                found = _evaluate_on_server(state, evaluate_fn)
                tell("Initial global evaluation results: %s", found)
            state.stop_reason = state.stop_reason or self._spent(state.server_round)
            for server_round in range(state.server_round + 1, num_rounds + 1):
                if state.stop_reason is not None:
                    break
                state.server_round = server_round
                with log_scope(round=server_round), buffers_declared(self.buffers):
                    report = self._run_round(
                        state, timeout, train_config, evaluate_config, evaluate_fn
                    )
                    state.stop_reason = self._spent(server_round)
                    for callback in callbacks:
                        callback.on_round_end(state, report)
            tell_end(state, time.monotonic() - began)
        except BaseException as caught:
            error = caught
            raise
        finally:
            for callback in callbacks:
                _end(callback, state, error)
        return state.result

    def converse(
        self, grid: Grid, messages: Iterable[Message], timeout: float
    ) -> Iterable[Message]:
        """Send the messages to train; return the replies with which the round closes."""
        return grid.send_and_receive(messages, timeout=timeout)

    def _spent(self, server_round: int) -> str | None:
        """Return why noise at the server allows no further round, None if it does."""
        if self.privacy is None or server_round in (0, self.num_rounds):
            return None
        return self.privacy.exhausted(server_round + 1) or None

    def _run_round(
        self,
        state: RunState,
        timeout: float,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
    ) -> RoundReport:
        """Train, evaluate, and return the round's report."""
        grid, result, server_round = state.grid, state.result, state.server_round
        wall, cpu = time.monotonic(), time.process_time()
        tell("")
        tell("[ROUND %d/%d]", server_round, state.num_rounds)
        messages = self.configure_train(server_round, state.arrays, train_config, grid)
        replies = self.converse(grid, messages, timeout)
        arrays, metrics = self.aggregate_train(server_round, replies)
        if arrays is not None:
            state.arrays = result.arrays = arrays
        if metrics is not None:
            tell("\t└──> Aggregated MetricRecord: %s", metrics)
            result.train_metrics_clientapp[server_round] = metrics
        self.finish_round()
        trained_wall, trained_cpu = time.monotonic(), time.process_time()
        messages = self.configure_evaluate(
            server_round, state.arrays, evaluate_config, grid
        )
        replies = grid.send_and_receive(messages, timeout=timeout)
        evaluated = self.aggregate_evaluate(server_round, replies)
        if evaluated is not None:
            tell("\t└──> Aggregated MetricRecord: %s", evaluated)
            result.evaluate_metrics_clientapp[server_round] = evaluated
        if evaluate_fn:
            tell("Global evaluation")
            tell("\t└──> MetricRecord: %s", _evaluate_on_server(state, evaluate_fn))
        end_wall, end_cpu = time.monotonic(), time.process_time()
        return RoundReport(
            server_round=server_round,
            num_rounds=state.num_rounds,
            train=self.reports.get(TRAIN),
            evaluate=self.reports.get(EVALUATE),
            server_metrics=dict(result.evaluate_metrics_serverapp.get(server_round, {})),
            method_metrics=dict(self.round_metrics),
            seconds=end_wall - wall,
            cpu_seconds=trained_cpu - cpu,
            seconds_evaluate=end_wall - trained_wall,
            evaluation_cpu_seconds=end_cpu - trained_cpu,
        )


def _end(callback: Callback, state: RunState, error: BaseException | None) -> None:
    """Tell a callback that the run is over: what it raises must not cost the result."""
    try:
        callback.on_end(state, error)
    except Exception as failure:
        name = type(callback).__name__
        logger.warning("%s failed at the end of the run: %s", name, described(failure))


def _evaluate_on_server(state: RunState, evaluate_fn: EvaluateFn) -> MetricRecord | None:
    metrics = evaluate_fn(state.server_round, state.arrays)
    if metrics is not None:
        state.result.evaluate_metrics_serverapp[state.server_round] = metrics
    return metrics
