"""Trackers: what they are told, that a run outlives them, and that no network is asked."""

import importlib.util
import json
import logging
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedsuite
from fedsuite.callbacks.tensorboard import TensorBoard
from fedsuite.callbacks.tracking import Flat, TrackedRun, Tracking, flat, tracking
from fedsuite.core.errors import ConfigError
from fedsuite.core.extras import how_to_install
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import RoundReport
from fedsuite.rounds.strategy import FederatedStrategy
from tests.callbacks.reports import a_report, a_state
from tests.small_runs import SMALL

# What each is told


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    assert events.Tags()["histograms"] == ["accuracy"]
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_events_hold_the_scalars(folder: RunFolder) -> None:
    board = TensorBoard(TrackedRun(folder, {"method": "fedavg"}))
    for server_round in (1, 2):
        board.log(a_report(server_round, score=server_round / 4))
    board.close(finished=True, summary={"summary/mean": 0.5, "summary/words": "good"})
    values = scalars(folder.path / "tensorboard")
    assert values["score"] == [(1, 0.25), (2, 0.5)]
    assert values["train_loss"] == [(1, 1.75), (2, 1.75)]
    assert values.pop("summary/mean") == [(2, 0.5)]
    assert set(values) == set(a_report(score=1.0).metrics) - {"round"}


def test_tensorboard_can_be_watched_while_the_run_goes_on(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer.record_writer import RecordWriter

    def write_slowly(writer: Any, data: bytes) -> None:
        time.sleep(0.01)
        write(writer, data)

    write = RecordWriter.write
    monkeypatch.setattr(RecordWriter, "write", write_slowly)
    board = TensorBoard(TrackedRun(folder, {}))
    watcher = EventAccumulator(str(folder.path / "tensorboard"))
    for server_round in (1, 2):
        board.log(a_report(server_round))
        watcher.Reload()
        seen = [event.step for event in watcher.Histograms("accuracy")]
        assert seen == [server_round], "it keeps the last histogram"
    board.close(finished=False, summary={})


def test_a_summary_is_flattened() -> None:
    summary = {"a": {"b": 1, "c": None}, "text": "x", "last_round": {"loss": 2.0}}
    assert flat(summary) == {"summary/a/b": 1, "summary/text": "x"}


# Trouble


class Fake:
    """A tracker that writes down what it hears, and fails where it is told to."""

    run_id = "seven"
    fails_at = ""
    heard: list[str]

    def __init__(self, run: TrackedRun) -> None:
        self.hear(f"open {run.run_id or 'new'} after {run.server_round}")

    def hear(self, what: str) -> None:
        type(self).heard.append(what)
        if what.split()[0] == self.fails_at:
            raise OSError(28, "No space\nleft on device")

    def log(self, report: RoundReport) -> None:
        self.hear(f"log {report.server_round}")

    def close(self, *, finished: bool, summary: Flat) -> None:
        self.hear(f"close {finished} {sorted(summary)}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """Put a tracker of this file in the place of Weights & Biases."""
    module: Any = ModuleType("fedsuite.callbacks.wandb")
    module.tracker = Fake
    monkeypatch.setitem(sys.modules, "fedsuite.callbacks.wandb", module)
    monkeypatch.setattr(Fake, "heard", [], raising=False)
    return Fake


def tell(folder: RunFolder, rounds: int = 2) -> None:
    with tracking(["wandb"], folder, {}) as found:
        for callback in found:
            callback.on_start(a_state())
            for server_round in range(1, rounds + 1):
                callback.on_round_end(a_state(), a_report(server_round))
        folder.write_json("summary.json", {"rounds": rounds})


def test_a_tracker_hears_of_start_rounds_and_summary(
    folder: RunFolder, fake: type[Fake]
) -> None:
    tell(folder)
    told = ["log 1", "log 2", "close True ['summary/rounds']"]
    assert fake.heard == ["open new after 0", *told]
    tell(folder)
    assert fake.heard[4:] == ["open seven after 0", *told]


def test_a_run_that_fails_leaves_no_summary(folder: RunFolder, fake: type[Fake]) -> None:
    with pytest.raises(KeyError), tracking(["wandb"], folder, {}) as (callback,):
        callback.on_start(a_state())
        folder.write_json("summary.json", {"rounds": 1})
        raise KeyError
    assert fake.heard[1:] == ["close False []"]


@pytest.mark.parametrize(
    ("moment", "heard"),
    [
        ("open", ["open"]),
        ("log", ["open", "log", "close"]),
        ("close", ["open", "log", "log", "close", "close"]),
    ],
)
def test_a_tracker_that_fails_is_left_out_with_one_line(
    moment: str,
    heard: list[str],
    folder: RunFolder,
    fake: type[Fake],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(fake, "fails_at", moment)
    tell(folder)
    assert [what.split()[0] for what in fake.heard] == heard
    (line,) = caplog.messages
    assert line == (
        "tracker wandb failed (OSError: [Errno 28] No space left on device): the run goes "
        "on without it"
    )


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_one_line(
    name: str,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"fedsuite.callbacks.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with caplog.at_level(logging.WARNING):
        Tracking(name, folder, {}).on_start(a_state())
    (line,) = caplog.messages
    assert line == (
        f"tracker {name} needs {name}: {how_to_install(name)}: the run goes on without it"
    )


def test_names_are_checked_before_anything_starts() -> None:
    words = "key trackers = 'mlflow, aim': it names 'aim': expected some of tensorboard"
    with pytest.raises(ConfigError, match=words):
        Experiment.from_values({"trackers": "mlflow, aim"})


# The real ones


class KilledError(Exception):
    pass


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Note what would leave this machine; W&B talks to a process of its own by a file."""
    asked: list[object] = []
    connect = socket.socket.connect

    def noted(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            asked.append(address)
            raise OSError("no network in this test")
        connect(self, address)

    def looked_up(*arguments: Any, **_: Any) -> Any:
        asked.append(arguments)
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", noted)
    monkeypatch.setattr(socket.socket, "connect_ex", noted)
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    for variable in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    yield asked


def killed_and_resumed(
    tmp_path: Path, tracker: str, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return the folder of a run that died in round 4, after the checkpoint of round 2."""
    begin = FederatedStrategy.configure_train

    def die(self: FederatedStrategy, server_round: int, *rest: Any) -> Any:
        if server_round == 4:
            raise KilledError
        return begin(self, server_round, *rest)

    keys = {**SMALL, "output-dir": str(tmp_path), "run-name": "mine", "num-rounds": 5}
    keys |= {"checkpoint-every": 2, "trackers": tracker, "clients-per-round": 2}
    with monkeypatch.context() as patch:
        patch.setattr(FederatedStrategy, "configure_train", die)
        with pytest.raises(KilledError):
            fedsuite.run(keys)
    fedsuite.resume(tmp_path / "mine")
    return tmp_path / "mine"


def rounds(folder: Path, name: str) -> list[float]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"needs {package}"
    )


@needs("mlflow")
@pytest.mark.smoke
@pytest.mark.slow
def test_a_resumed_run_goes_on_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[object]
) -> None:
    folder = killed_and_resumed(tmp_path, "mlflow", monkeypatch)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    found = client.get_experiment_by_name("fedsuite")
    (run,) = client.search_runs([found.experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params["method"] == "fedavg"
    assert run.data.params["num-rounds"] == "5"
    for name in ("accuracy_mean", "accuracy_worst10", "train_loss", "bytes_up"):
        history = client.get_metric_history(run.info.run_id, name)
        assert [metric.step for metric in history] == [1, 2, 3, 4, 5]
        assert [metric.value for metric in history] == rounds(folder, name)
    assert len(client.get_metric_history(run.info.run_id, "seconds")) == 5
    mean = 100 * rounds(folder, "accuracy_mean")[-1]
    shown = run.data.metrics["summary/accuracy_in_per_cent/mean"]
    assert shown == pytest.approx(mean)
    assert no_network == []


@needs("wandb")
@pytest.mark.smoke
@pytest.mark.slow
def test_a_resumed_run_goes_on_in_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[object]
) -> None:
    folder = killed_and_resumed(tmp_path, "wandb", monkeypatch)
    manifest = json.loads((folder / "manifest.json").read_text())
    parts = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert [part.stem for part in parts] == [f"run-{manifest['trackers']['wandb']}"] * 2
    before, after = map(records_of, parts)
    names = ("accuracy_mean", "accuracy_worst10", "train_loss", "bytes_up", "seconds")
    for records, steps in ((before, [1, 2, 3]), (after, [3, 4, 5])):
        assert records["config"]["method"] == '"fedavg"'
        assert [int(row["_step"]) for row in records["rows"]] == steps
        assert all(set(names) <= set(row) for row in records["rows"])
    told = [float(row["train_loss"]) for row in before["rows"][:2] + after["rows"]]
    assert told == rounds(folder, "train_loss")
    mean = 100 * rounds(folder, "accuracy_mean")[-1]
    shown = float(after["summary"]["summary/accuracy_in_per_cent/mean"])
    assert shown == pytest.approx(mean)
    assert "summary/rounds" not in before["summary"]
    assert (before["exit"], after["exit"]) == (1, 0)
    written = {file.name for file in folder.rglob("offline-run-*/files/*")}
    assert not written, "nothing of this machine is written"
    assert no_network == []


def records_of(path: Path) -> dict[str, Any]:
    """Return configuration, rows, summary and exit code of a file of W&B's."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {"config": {}, "rows": [], "summary": {}, "exit": None}
    for data in entries(path.read_bytes()):
        record = Record.FromString(data)
        # The configuration comes with the run or after it, as W&B's process is on time.
        for config in (record.run.config, record.config):
            found["config"] |= {u.key: u.value_json for u in config.update}
        if record.WhichOneof("record_type") == "history":
            found["rows"].append(
                {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            )
        for item in record.summary.update:
            found["summary"][item.key or "/".join(item.nested_key)] = item.value_json
        if record.WhichOneof("record_type") == "exit":
            found["exit"] = record.exit.exit_code
    return found


def entries(log: bytes) -> Iterator[bytes]:
    """Yield the entries of a log in LevelDB's format, after W&B's seven bytes."""
    at, entry, block = 7, b"", 32768
    while at < len(log):
        if block - at % block < 7:
            at += block - at % block
        length = int.from_bytes(log[at + 4 : at + 6], "little")
        entry += log[at + 7 : at + 7 + length]
        # A whole entry, or the last part of one.
        if log[at + 6] in (1, 4):
            yield entry
            entry = b""
        at += 7 + length
