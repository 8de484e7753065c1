"""TensorBoard, on reports made by hand."""

import time
from pathlib import Path
from typing import Any

import pytest

from fedsuite.callbacks.tensorboard import TensorBoard
from tests.callbacks.reports import a_report, a_state


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
