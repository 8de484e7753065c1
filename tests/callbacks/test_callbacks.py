"""Progress, recorder, early stop, best model and TensorBoard, on reports made by hand."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsuite.callbacks import Callback, RoundReport, RunState
from fedsuite.callbacks.best_model import BestModel
from fedsuite.callbacks.checkpoint import CheckpointWriter
from fedsuite.callbacks.early_stop import Best, EarlyStop, higher_is_better
from fedsuite.callbacks.progress import Progress, accuracy_words, round_line
from fedsuite.callbacks.recorder import Recorder
from fedsuite.callbacks.tensorboard import TensorBoard
from fedsuite.checkpoint import Checkpoint
from fedsuite.engines.local import LocalGrid
from fedsuite.errors import ConfigError
from fedsuite.records import to_record
from fedsuite.results.writer import RunFolder
from fedsuite.strategies import loop
from fedsuite.strategies.callback import accuracy_metrics
from fedsuite.strategies.exchange import Rejection
from fedsuite.strategies.report import PhaseReport
from fedsuite.strategies.standalone import Standalone
from tests.helpers import (
    MatrixStandaloneClient,
    TamperingGrid,
    Trace,
    for_client,
    matrix_app,
    run,
    run_tampered,
    set_metrics,
    strategy_for,
    zeros,
)

TIMES = (0.25, 0.125, 0.0625, 0.03125)
NO_TIME = (0.0, 0.0, 0.0, 0.0)


def a_report(
    server_round: int = 1,
    num_rounds: int = 9,
    accuracies: Sequence[float] = (0.5, 0.75),
    **metrics: float,
) -> RoundReport:
    train = PhaseReport("train", num_asked=3, bytes_down=48, bytes_up=32)
    train.rows = [
        {"client": 0, "num_examples": 1, "loss": 1.0},
        {"client": "north", "num_examples": 3, "loss": 2.0},
    ]
    train.rejections = [Rejection(server_round, 2, "metric loss is nan")]
    evaluate = PhaseReport("evaluate", bytes_down=16)
    evaluate.rows = [
        {"client": k, "num_examples": 1, "accuracy": accuracy}
        for k, accuracy in enumerate(accuracies)
    ]
    return RoundReport(server_round, num_rounds, train, evaluate, {}, metrics, *TIMES)


def a_state(weight: float = 0.0, num_rounds: int = 9) -> RunState:
    arrays = to_record({"weight": np.full((2, 2), weight, dtype=np.float32)})
    grid = LocalGrid(matrix_app(), 3)
    return RunState(strategy_for("single"), grid, num_rounds, arrays)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"seed": 0}, {"method": "fedavg"})


def rows(folder: RunFolder, name: str) -> list[dict[str, object]]:
    lines = (folder.path / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# The report


def test_metrics_by_hand() -> None:
    assert a_report(spread=0.5).metrics == {
        "round": 1,
        "train_loss": 1.75,
        "train_num_examples": 4.0,
        "evaluate_accuracy": 0.625,
        "evaluate_num_examples": 2.0,
        "accuracy_mean": 0.625,
        "accuracy_worst10": 0.5,
        "accuracy_variance": 156.25,
        "spread": 0.5,
        "clients_trained": 2,
        "replies_rejected": 1,
        "bytes_down": 64,
        "bytes_up": 32,
        "bytes_down_train": 48,
        "seconds": 0.25,
        "cpu_seconds": 0.125,
        "seconds_evaluate": 0.0625,
        "cpu_seconds_evaluate": 0.03125,
    }


def test_accuracy_that_is_no_fraction_is_left_out() -> None:
    assert accuracy_metrics([0.5, 97.0, -1.0])["accuracy_mean"] == 0.5
    assert accuracy_metrics([97.0]) == accuracy_metrics([]) == {}


class Clock:
    """Stands in for the module ``time`` and moves when told."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 10 * self.now


def test_a_round_tells_its_time_and_that_of_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    strategy = strategy_for("single")
    for name, seconds in (("aggregate_train", 2), ("finish_round", 1)):
        monkeypatch.setattr(
            strategy, name, delayed(getattr(strategy, name), clock, seconds)
        )
    slow = delayed(strategy.aggregate_evaluate, clock, 4)
    monkeypatch.setattr(strategy, "aggregate_evaluate", slow)
    (report,) = run(strategy, LocalGrid(matrix_app(), 3)).reports
    assert (report.seconds, report.seconds_evaluate) == (7, 4)
    assert (report.cpu_seconds, report.cpu_seconds_evaluate) == (70, 40)


def delayed(function: Callable[..., Any], clock: Clock, seconds: float) -> Any:
    def call(*args: Any) -> Any:
        clock.now += seconds
        return function(*args)

    return call


# Progress


def test_line_of_a_round() -> None:
    report = a_report(3, 120)
    assert round_line(report, accuracy_words(report)) == (
        "round   3 of 120  training loss 1.7500  mean accuracy 62.50%  "
        "worst 10 % 50.00%  1 replies rejected  0.25 s"
    )


def test_line_of_a_round_with_nothing_in_it() -> None:
    empty = RoundReport(1, 1, None, None, {}, {}, *NO_TIME)
    assert accuracy_words(empty) == ""
    assert round_line(empty, "") == "round 1 of 1  0.00 s"


def printed(num_rounds: int) -> list[str]:
    lines: list[str] = []
    progress = Progress(lines.append)
    for server_round in range(1, num_rounds + 1):
        progress.on_round_end(a_state(), a_report(server_round, num_rounds))
    return lines


def test_short_runs_print_each_round_and_long_ones_the_first_and_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedsuite.callbacks.progress.time.monotonic", lambda: 1000.0)
    assert len(printed(50)) == 50
    long = printed(51)
    assert [line[:14] for line in long] == ["round  1 of 51", "round 51 of 51"]


def test_accuracy_stays_in_sight_between_evaluations() -> None:
    lines: list[str] = []
    progress = Progress(lines.append)
    progress.on_round_end(a_state(), a_report(1))
    progress.on_round_end(a_state(), a_report(2, accuracies=()))
    assert "mean accuracy 62.50%" in lines[1]


def test_reason_to_stop_is_printed() -> None:
    lines: list[str] = []
    state = a_state()
    state.stop_reason = "enough"
    Progress(lines.append).on_round_end(state, a_report(4))
    assert lines[-1] == "stopping after round 4: enough"


# Recorder


def test_recorder_writes_rounds_clients_and_rejections(folder: RunFolder) -> None:
    report = a_report(2)
    Recorder(folder).on_round_end(a_state(), report)
    assert rows(folder, "rounds") == [report.metrics]
    assert rows(folder, "clients") == [
        {"round": 2, "phase": "train", "client": 0, "num_examples": 1, "loss": 1.0},
        {"round": 2, "phase": "train", "client": "north", "num_examples": 3, "loss": 2.0},
        {"round": 2, "phase": "evaluate", "client": 0, "num_examples": 1, "accuracy": 0.5},
        {"round": 2, "phase": "evaluate", "client": 1, "num_examples": 1, "accuracy": 0.75},
    ]
    assert rows(folder, "events") == [
        {
            "round": 2,
            "kind": "rejected-reply",
            "phase": "train",
            "client": 2,
            "reason": "metric loss is nan",
        }
    ]


def test_recorder_in_a_run_with_a_bad_reply(folder: RunFolder) -> None:
    trace = run_tampered("hosted", for_client(1, "hosted", set_metrics(loss=float("nan"))))
    for report in trace.reports:
        Recorder(folder).on_round_end(a_state(), report)
    assert [row["round"] for row in rows(folder, "rounds")] == [1, 2]
    [event] = rows(folder, "events")
    assert (event["round"], event["client"]) == (1, 1)


# Early stop and best model


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("accuracy_mean", True),
        ("accuracy_worst10", True),
        ("evaluate_loss", False),
        ("accuracy_variance", False),
        ("bytes_up", False),
        ("replies_rejected", False),
    ],
)
def test_direction_of_metrics(metric: str, higher: bool) -> None:
    assert higher_is_better(metric) is higher


def stopped_after(values: Sequence[float | None], metric: str, patience: int = 2) -> int:
    """Return the round after which a run with these values stops; 0 is never."""
    stop, state = EarlyStop(metric, patience), a_state()
    for server_round, value in enumerate(values, start=1):
        report = RoundReport(server_round, 9, None, None, {}, {}, *NO_TIME)
        if value is not None:
            report = a_report(server_round, **{metric: value})
        stop.on_round_end(state, report)
        if state.stop_reason is not None:
            return server_round
    return 0


def test_early_stop_where_higher_is_better() -> None:
    assert stopped_after([0.1, 0.2, 0.2, 0.3, 0.3, 0.1, 0.4], "score") == 6
    assert stopped_after([0.1, 0.2, 0.3, 0.4], "score") == 0


def test_early_stop_where_lower_is_better() -> None:
    assert stopped_after([3.0, 2.0, 2.5, 1.0, 1.0, 1.5], "my_loss") == 6
    assert stopped_after([0.1, 0.2, 0.3], "my_loss") == 3


def test_rounds_without_the_metric_do_not_count() -> None:
    assert stopped_after([0.5, None, None, None, 0.4, None, 0.3], "score") == 7


def test_value_that_is_no_number_is_no_improvement() -> None:
    nan = float("nan")
    assert stopped_after([nan, 0.1, 0.2, 0.3], "score") == 0
    assert stopped_after([0.1, nan, nan], "score") == 3


def test_reason_names_metric_value_and_round() -> None:
    stop, state = EarlyStop("score", 1), a_state()
    for server_round, value in ((3, 0.25), (4, 0.2)):
        stop.on_round_end(state, a_report(server_round, score=value))
    assert state.stop_reason == "score has not improved on 0.25 since round 3"


def test_memory_survives_a_resume() -> None:
    first, second = EarlyStop("score", 3), EarlyStop("score", 3)
    for server_round, value in enumerate([0.5, 0.4, 0.3], start=1):
        first.on_round_end(a_state(), a_report(server_round, score=value))
    second.recall(json.loads(json.dumps(first.remember())))
    state = a_state()
    second.on_round_end(state, a_report(4, score=0.45))
    assert state.stop_reason == "score has not improved on 0.5 since round 1"


def test_run_ends_after_the_round_that_stops_it() -> None:
    """Losses stay the same from round 2 on, in which the model is at the mean."""
    stop = EarlyStop("train_loss", 2)
    trace = run(strategy_for("single"), LocalGrid(matrix_app(), 3), 9, zeros(), [stop])
    assert [report.server_round for report in trace.reports] == [1, 2, 3, 4]


def test_best_follows_the_best() -> None:
    best = Best("score")
    values = [0.2, 0.1, 0.3, 0.3]
    found = [best.improved(a_report(r, score=v)) for r, v in enumerate(values, start=1)]
    assert found == [True, False, True, False]
    assert best.improved(RoundReport(5, 9, None, None, {}, {}, *NO_TIME)) is None
    assert (best.value, best.server_round) == (0.3, 3)


def test_a_metric_that_no_round_has_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no metric 'acuracy' .*accuracy_mean"):
        EarlyStop("acuracy", 2).on_round_end(a_state(), a_report(1))


def test_best_model_is_the_one_of_the_best_round(folder: RunFolder) -> None:
    keeper = BestModel("score", folder)
    path = folder.path / "best-model.safetensors"
    for server_round, value in enumerate([0.1, 0.4, 0.3], start=1):
        keeper.on_round_end(a_state(server_round), a_report(server_round, score=value))
    assert load_file(path)["weight"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    again = BestModel("score", folder)
    again.recall(json.loads(json.dumps(keeper.remember())))
    again.on_round_end(a_state(4.0), a_report(4, score=0.35))
    assert load_file(path)["weight"][0, 0] == 2.0
    again.on_round_end(a_state(5.0), a_report(5, score=0.45))
    assert load_file(path)["weight"][0, 0] == 5.0


# Checkpoint writer


def checkpointed(
    folder: RunFolder, num_rounds: int, every: int, **options: int
) -> list[int]:
    writer = CheckpointWriter(folder, "print", every=every, **options)
    run(strategy_for("single"), LocalGrid(matrix_app(), 3), num_rounds, zeros(), [writer])
    paths = (folder.path / "checkpoints").glob("round-*")
    return sorted(Checkpoint.load(path).server_round for path in paths)


def test_checkpoints_every_so_many_rounds_and_at_the_end(folder: RunFolder) -> None:
    assert checkpointed(folder, 8, 3, keep=9) == [3, 6, 8]


def test_old_checkpoints_are_deleted(folder: RunFolder) -> None:
    assert checkpointed(folder, 5, 1, keep=2) == [4, 5]


def test_checkpoint_where_a_run_is_stopped(folder: RunFolder) -> None:
    stop = EarlyStop("train_loss", 1)
    writer = CheckpointWriter(folder, "print", every=100, others=[stop])
    run(strategy_for("single"), LocalGrid(matrix_app(), 3), 9, zeros(), [stop, writer])
    [path] = (folder.path / "checkpoints").glob("round-*")
    checkpoint = Checkpoint.load(path)
    assert checkpoint.server_round == 3
    assert checkpoint.callbacks == {"early-stop": stop.remember()}
    other = EarlyStop("train_loss", 1)
    CheckpointWriter(folder, "print", every=1, others=[other, Trace()]).recall(checkpoint)
    assert other.remember() == stop.remember()


def test_clients_are_told_which_version_the_last_checkpoint_needs(
    folder: RunFolder,
) -> None:
    """Where clients keep files of their own, they prune by what the message names."""
    writer = CheckpointWriter(folder, "print", every=2)
    grid = TamperingGrid(matrix_app(MatrixStandaloneClient), 1)
    strategy = Standalone(identity="partition", num_clients=1)
    run(strategy, grid, 5, zeros(), [writer])
    trains = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    assert [config.get("keep-versions") for config in trains] == [
        None,
        None,
        ["2.1"],
        ["2.1"],
        ["4.1"],
    ]


# TensorBoard


def test_tensorboard_events_hold_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board.on_start(a_state())
    for server_round in (1, 2):
        report = a_report(server_round, score=server_round / 4)
        board.on_round_end(a_state(), report)
    board.on_end(a_state(), None)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    values = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    assert values["score"] == [(1, 0.25), (2, 0.5)]
    assert values["train_loss"] == [(1, 1.75), (2, 1.75)]
    assert set(values) == set(a_report(score=1.0).metrics) - {"round"}
    assert events.Tags()["histograms"] == ["accuracy"]


# The order of the calls


def test_callbacks_hear_of_start_rounds_and_end() -> None:
    heard: list[str] = []

    class Listening(Callback):
        def on_start(self, state: RunState) -> None:
            heard.append(f"start {state.server_round}")

        def on_round_end(self, state: RunState, report: RoundReport) -> None:
            heard.append(f"round {state.server_round} {report.server_round}")

        def on_end(self, state: RunState, error: BaseException | None) -> None:
            heard.append(f"end {error}")

    run(strategy_for("single"), LocalGrid(matrix_app(), 3), 2, zeros(), [Listening()])
    assert heard == ["start 0", "round 1 1", "round 2 2", "end None"]


def test_tensorboard_can_be_watched_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer.record_writer import RecordWriter

    def write_slowly(writer: Any, data: bytes) -> None:
        time.sleep(0.01)
        write(writer, data)

    write = RecordWriter.write
    monkeypatch.setattr(RecordWriter, "write", write_slowly)
    board, watcher = TensorBoard(tmp_path), EventAccumulator(str(tmp_path))
    board.on_start(a_state())
    for server_round in (1, 2):
        board.on_round_end(a_state(), a_report(server_round))
        watcher.Reload()
        seen = [event.step for event in watcher.Histograms("accuracy")]
        assert seen == [server_round], "it keeps the last histogram"
    board.on_end(a_state(), None)
