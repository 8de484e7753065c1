"""The strategy that all methods stand on, and the rounds of its run.

A method overrides :meth:`FederatedStrategy.train_exchange`, which says what is sent and
what must come back, :meth:`FederatedStrategy.take`, which takes in one reply, and
:meth:`FederatedStrategy.aggregate`, which makes the new model of those that were taken.
The rounds are Flower's own loop, with callbacks, resume, and an orderly end.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from typing_extensions import override

from fedsuite.core.errors import ConfigError, described
from fedsuite.core.logs import ServerLogger, in_own_run, log_scope
from fedsuite.messages.array_records import num_bytes, to_arrays
from fedsuite.messages.records import EVALUATE, NEW, TRAIN
from fedsuite.messages.statistics import buffers_declared, names_of_buffers
from fedsuite.rounds.checkpoint import Checkpoint
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.legacy_server import check_functions
from fedsuite.rounds.remarks import tell
from fedsuite.rounds.round import RoundStrategy
from fedsuite.workarounds.prompt_grid import PromptGrid

logger = ServerLogger(__name__)

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

ShouldStop = Callable[[int, Result], bool]
"""Gets a round's number and the result so far; true ends the run."""

Configs = Mapping[str, ConfigRecord]
"""Phase to what its messages are told beside the method's settings."""


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
        check_functions(evaluate_fn=evaluate_fn, should_stop=should_stop)
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
        state.result.arrays = state.arrays
        if resume is not None:
            resume.restore(state)
            # Clients may be at work for who wrote the checkpoint.
            self.attempt = self.attempt or time.time_ns() // 1_000_000
        error: BaseException | None = None
        try:
            for callback in callbacks:
                callback.on_start(state)
            # A run of fedsuite's own has other words for it.
            as_flower = not in_own_run()
            if as_flower:
                _tell_start(state, configs)
            self.summary()
            began = time.monotonic()
            if evaluate_fn and resume is None:
                metrics = _evaluate_on_server(state, evaluate_fn)
                tell("Initial global evaluation results: %s", metrics)
            state.stop_reason = state.stop_reason or _spent(state)
            for server_round in range(state.server_round + 1, state.num_rounds + 1):
                if state.stop_reason is not None:
                    break
                state.server_round = server_round
                buffers = names_of_buffers(self.buffers or (), state.arrays)
                with log_scope(round=server_round), buffers_declared(buffers):
                    began_round = _now()
                    replies = _asked(state, TRAIN, configs[TRAIN], timeout)
                    # On the local engine each client trains now.
                    arrays, metrics = self.aggregate_train(server_round, replies)
                    self.tell_passed_by(server_round)
                    _note_training(state, arrays, metrics)
                    trained = _now()
                    replies = _asked(state, EVALUATE, configs[EVALUATE], timeout)
                    metrics = self.aggregate_evaluate(server_round, replies)
                    _note_evaluation(state, metrics, evaluate_fn)
                    report = _report(state, began_round, trained)
                    state.stop_reason = _spent(state)
                    if should_stop is not None and should_stop(server_round, state.result):
                        state.stop_reason = state.stop_reason or "should_stop is true"
                    for callback in callbacks:
                        callback.on_round_end(state, report)
            if as_flower:
                _tell_end(state, time.monotonic() - began)
        except BaseException as caught:
            error = caught
            raise
        finally:
            for callback in callbacks:
                _end(callback, state, error)
        return state.result


def _spent(state: RunState) -> str | None:
    """Return why noise at the server, or the clock, allows no further round, else None."""
    privacy, server_round = state.strategy.privacy, state.server_round
    if reason := state.strategy.time_is_up():
        return reason
    if privacy is None or server_round in (0, state.num_rounds):
        return None
    return privacy.exhausted(server_round + 1) or None


def _now() -> tuple[float, float]:
    """Return the time, and that of the processor, in seconds."""
    return time.monotonic(), time.process_time()


def _asked(
    state: RunState, phase: str, config: ConfigRecord, timeout: float
) -> Iterable[Message]:
    """Ask the clients of a phase, and return the replies as they come."""
    strategy, grid, server_round = state.strategy, state.grid, state.server_round
    if phase == TRAIN:
        tell("")
        tell("[ROUND %d/%d]", server_round, state.num_rounds)
        asked = strategy.configure_train(server_round, state.arrays, config, grid)
        return strategy.converse(grid, strategy.outgoing(phase, asked), timeout)
    asked = strategy.configure_evaluate(server_round, state.arrays, config, grid)
    return grid.send_and_receive(strategy.outgoing(phase, asked), timeout=timeout)


def _note_training(
    state: RunState, arrays: ArrayRecord | None, metrics: MetricRecord | None
) -> None:
    """Keep what the clients' training has made of the model, and the server's time."""
    strategy = state.strategy
    if arrays is not None:
        state.arrays = state.result.arrays = arrays
    if metrics is not None:
        tell("\t└──> Aggregated MetricRecord: %s", metrics)
        state.result.train_metrics_clientapp[state.server_round] = metrics
    strategy.finish_round()
    if (clock := strategy.virtual_clock) is not None:
        clock.end_round()
        strategy.round_metrics["virtual_seconds"] = clock.now


def _note_evaluation(
    state: RunState, metrics: MetricRecord | None, evaluate_fn: EvaluateFn | None
) -> None:
    """Keep what the clients' evaluation says, and evaluate at the server."""
    if metrics is not None:
        tell("\t└──> Aggregated MetricRecord: %s", metrics)
        state.result.evaluate_metrics_clientapp[state.server_round] = metrics
    if evaluate_fn:
        tell("Global evaluation")
        tell("\t└──> MetricRecord: %s", _evaluate_on_server(state, evaluate_fn))


def _report(
    state: RunState, began: tuple[float, float], trained: tuple[float, float]
) -> RoundReport:
    """Return the report of a round that has ended now."""
    strategy, server_round = state.strategy, state.server_round
    wall, cpu = _now()
    return RoundReport(
        server_round=server_round,
        num_rounds=state.num_rounds,
        train=strategy.reports.get(TRAIN),
        evaluate=strategy.reports.get(EVALUATE),
        new=strategy.reports.get(NEW),
        server_metrics=dict(state.result.evaluate_metrics_serverapp.get(server_round, {})),
        method_metrics=dict(strategy.round_metrics),
        seconds=wall - began[0],
        cpu_seconds=trained[1] - began[1],
        seconds_evaluate=wall - trained[0],
        evaluation_cpu_seconds=cpu - trained[1],
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
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                f"evaluate_fn returned {type(metrics).__name__}, not a MetricRecord: write "
                "MetricRecord({'loss': loss, ...}), or None for no metrics"
            )
        state.result.evaluate_metrics_serverapp[state.server_round] = metrics
    return metrics


def _tell_start(state: RunState, configs: Mapping[str, ConfigRecord | None]) -> None:
    """Tell what is about to run; ``configs`` are those of the phases by name."""
    tell("Starting %s strategy:", type(state.strategy).__name__)
    tell("\t├── Number of rounds: %d", state.num_rounds)
    tell("\t├── ArrayRecord (%.2f MB)", num_bytes(to_arrays(state.arrays)) / 2**20)
    for phase, config in configs.items():
        # Bytes may be anything, keys among them.
        shown = {
            k: "<bytes>" if isinstance(v, bytes) else v for k, v in (config or {}).items()
        }
        tell("\t├── ConfigRecord (%s): %s", phase, shown or "(empty!)")
    if state.server_round:
        tell("\t├── Going on after round %d", state.server_round)


def _tell_end(state: RunState, seconds: float) -> None:
    """Tell the results."""
    tell("")
    if state.stop_reason is not None:
        tell("Stopped after round %d: %s", state.server_round, state.stop_reason)
    tell("Strategy execution finished in %.2fs", seconds)
    tell("")
    tell("Final results:")
    tell("")
    # Flower's tables of a result; making them serialises its arrays.
    for line in str(state.result).splitlines():
        tell("\t%s", line)
    tell("")
