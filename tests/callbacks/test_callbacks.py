"""Reports, progress, recorder, checkpoints, and the order of the calls."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsuite.callbacks import Callback, RoundReport, RunState
from fedsuite.callbacks.checkpoint_writer import CheckpointWriter
from fedsuite.callbacks.early_stop import EarlyStop
from fedsuite.callbacks.progress import Progress, round_line, score_words
from fedsuite.callbacks.recorder import MOST_COLUMNS, Recorder
from fedsuite.core.tasks import SCORES
from fedsuite.engines.local import LocalGrid
from fedsuite.results.writer import RunFolder
from fedsuite.rounds import strategy as rounds
from fedsuite.rounds.checkpoint import Checkpoint
from fedsuite.strategies.averaging.standalone import Standalone
from tests.callbacks.reports import NO_TIME, a_report, a_state
from tests.helpers import (
    MatrixStandaloneClient,
    TamperingGrid,
    Trace,
    for_client,
    matrix_app,
    run,
    run_tampered,
    set_arrays,
    strategy_for,
    zeros,
)


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
        "accuracy_median": 0.625,
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
        "evaluation_cpu_seconds": 0.03125,
    }


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
    monkeypatch.setattr(rounds, "time", clock)
    strategy = strategy_for("single")
    for name, seconds in (("aggregate_train", 2), ("finish_round", 1)):
        monkeypatch.setattr(
            strategy, name, delayed(getattr(strategy, name), clock, seconds)
        )
    slow = delayed(strategy.aggregate_evaluate, clock, 4)
    monkeypatch.setattr(strategy, "aggregate_evaluate", slow)
    (report,) = run(strategy, LocalGrid(matrix_app(), 3)).reports
    assert (report.seconds, report.seconds_evaluate) == (7, 4)
    assert (report.cpu_seconds, report.evaluation_cpu_seconds) == (30, 40)


def delayed(function: Callable[..., Any], clock: Clock, seconds: float) -> Any:
    def call(*args: Any) -> Any:
        clock.now += seconds
        return function(*args)

    return call


# Progress


def test_line_of_a_round() -> None:
    report = a_report(3, 120)
    assert round_line(report, score_words(report)) == (
        "round   3 of 120  training loss 1.7500  mean accuracy 62.50%  "
        "worst client 50.00%  1 replies rejected (1 not-finite)  0.25 s"
    )


@pytest.mark.parametrize(
    ("num_scored", "words"), [(10, "worst client"), (11, "worst 10 %"), (20, "worst 10 %")]
)
def test_the_worst_are_counted_among_those_with_a_score(
    num_scored: int, words: str
) -> None:
    few = {"accuracy_clients": num_scored, "accuracy_clients_asked": 40}
    means = {"accuracy_mean": 0.5, "accuracy_worst10": 0.25}
    report = a_report(accuracies=[0.5] * 40, **means, **few)
    assert f"of {num_scored} of 40 clients  {words} 25.00%" in score_words(report)
    report = a_report(accuracies=[0.5] * num_scored, **means)
    assert score_words(report) == f"mean accuracy 50.00%  {words} 25.00%"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mae", "mean MAE 0.625  worst client 0.75  "),
        ("concordance", "mean concordance 62.50%  worst client 50.00%  "),
    ],
)
def test_line_of_a_round_has_the_main_score(name: str, words: str) -> None:
    lines: list[str] = []
    report = a_report(1, accuracies=())
    assert report.evaluate is not None
    report.evaluate.rows = [
        {"client": k, "num_examples": 1, SCORES[name].column: value}
        for k, value in enumerate((0.5, 0.75))
    ]
    progress = Progress(lines.append, SCORES[name])
    progress.on_round_end(a_state(), report)
    nobody = a_report(2, accuracies=())
    assert nobody.evaluate is not None
    nobody.evaluate.rows = [{"client": 0, "num_examples": 1}]
    progress.on_round_end(a_state(), nobody)
    assert words in lines[0] and f"no {SCORES[name].title}" in lines[1]


def test_line_of_a_round_with_nothing_in_it() -> None:
    empty = RoundReport(1, 1, None, None, {}, {}, *NO_TIME)
    assert score_words(empty) == ""
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
            "cause": "not-finite",
            "phase": "train",
            "client": 2,
            "reason": "metric loss is nan",
        }
    ]


def test_new_names_of_metrics_end(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(folder)
    recorder.on_start(a_state())
    for server_round in (1, 2, 3):
        if server_round == 3:
            # A run that goes on knows what it had.
            recorder, state = Recorder(folder), a_state()
            state.server_round = 2
            recorder.on_start(state)
        report = a_report(server_round, accuracies=(0.5,))
        assert report.train is not None
        new = {f"{server_round}-{i}": 1.0 for i in range(MOST_COLUMNS - 6)}
        report.train.rows = [{**row, **new} for row in report.train.rows[:1]]
        recorder.on_round_end(a_state(), report)
    written = [row for row in rows(folder, "clients") if row["phase"] == "train"]
    assert len({name for row in rows(folder, "clients") for name in row}) == MOST_COLUMNS
    assert [len(row) for row in written] == [MOST_COLUMNS - 1, 5, 5]
    means = rows(folder, "rounds")
    assert "train_1-0" in means[0] and "train_loss" in means[2] and "seconds" in means[2]
    assert not [name for row in means[1:] for name in row if name.startswith("train_2-")]
    # Once by each process.
    assert len([r for r in caplog.records if "new names are left out" in r.message]) == 2


def test_recorder_in_a_run_with_a_bad_reply(folder: RunFolder) -> None:
    weight = np.full((2, 2), np.nan, np.float32)
    trace = run_tampered("hosted", for_client(1, "hosted", set_arrays(weight=weight)))
    for report in trace.reports:
        Recorder(folder).on_round_end(a_state(), report)
    assert [row["round"] for row in rows(folder, "rounds")] == [1, 2]
    [event] = rows(folder, "events")
    assert (event["round"], event["client"]) == (1, 1)


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


def test_clients_are_told_which_versions_the_kept_checkpoints_need(
    folder: RunFolder,
) -> None:
    """Where clients keep files of their own, they prune by what the message names."""
    writer = CheckpointWriter(folder, "print", every=2)
    grid = TamperingGrid(matrix_app(MatrixStandaloneClient), 1)
    strategy = Standalone(identity="partition", num_clients=1)
    run(strategy, grid, 7, zeros(), [writer])
    trains = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    assert [config.get("keep-versions") for config in trains] == [
        None,
        None,
        ["2.1"],
        ["2.1"],
        ["2.1,4.1"],
        ["2.1,4.1"],
        ["4.1,6.1"],
    ]


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
