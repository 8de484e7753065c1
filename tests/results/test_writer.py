"""The run folder as it is written, killed, and resumed."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.core.errors import RunError
from fedsuite.results.layout import read_manifest
from fedsuite.results.reader import load_run
from fedsuite.results.writer import InUseError, RunFolder, is_used
from tests.results.made_runs import EXPERIMENT, make_run


def rows(folder, name):
    return [json.loads(line) for line in (folder.path / f"{name}.jsonl").open()]


def test_create_writes_the_experiment_and_the_manifest(tmp_path):
    path = tmp_path / "deep" / "run"
    RunFolder.create(path, EXPERIMENT, {"method": "fedavg", "num_clients": 10})
    assert tomllib.loads((path / "experiment.toml").read_text()) == EXPERIMENT
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert (manifest["method"], manifest["num_clients"]) == ("fedavg", 10)
    assert manifest["versions"]["numpy"] == np.__version__
    assert manifest["versions"]["python"].startswith(f"{sys.version_info.major}.")
    assert (manifest["status"], manifest["finished"], manifest["error"]) == (
        "running",
        None,
        None,
    )
    assert manifest["started"].endswith("+00:00")


VALUES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


@settings(deadline=None, max_examples=50)
@given(value=VALUES)
def test_any_value_of_an_experiment_survives(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("runs") / "run"
    RunFolder.create(path, {"some-key": value}, {})
    read = load_run(path).experiment["some-key"]
    assert read == value
    assert type(read) is type(value)


def test_an_empty_folder_is_taken(tmp_path):
    RunFolder.create(tmp_path, EXPERIMENT, {})
    assert (tmp_path / "manifest.json").is_file()


def test_folders_around_that_cannot_be_flushed_stop_no_run(tmp_path, monkeypatch):
    run, around = tmp_path / "runs" / "run", {tmp_path, tmp_path / "runs"}
    run.mkdir(parents=True)
    flushed = []

    def sync_folder(path):
        if path in around:
            raise PermissionError(13, "Permission denied")
        flushed.append(path)

    monkeypatch.setattr("fedsuite.results.writer.sync_folder", sync_folder)
    RunFolder.create(run, EXPERIMENT, {}).finish("finished")
    assert run in flushed


def test_a_folder_in_use_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="exists and is not empty: choose another") as caught:
        RunFolder.create(tmp_path, EXPERIMENT, {})
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match="run"):
        RunFolder.create(tmp_path / "run", EXPERIMENT, {})
    with pytest.raises(RunError, match="cannot write"):
        RunFolder.create(tmp_path / "run" / "deeper", EXPERIMENT, {})


def test_of_two_runs_at_once_one_gets_the_folder(tmp_path, monkeypatch):
    # The other run comes between the look at the folder and taking it.
    path = tmp_path / "run"
    winner = RunFolder.create(path, EXPERIMENT, {"winner": True})
    monkeypatch.setattr("pathlib.Path.iterdir", lambda _: iter(()))
    with pytest.raises(RunError, match="is in use: a process still writes this run"):
        RunFolder.create(path, EXPERIMENT, {"winner": False})
    looks = iter([True, False, False])
    monkeypatch.undo()
    winner.finish("finished")
    # The other run comes and goes between the two looks.
    iterdir = Path.iterdir
    monkeypatch.setattr(
        "pathlib.Path.iterdir", lambda p: iter(()) if next(looks) else iterdir(p)
    )
    with pytest.raises(RunError, match="exists and is not empty"):
        RunFolder.create(path, EXPERIMENT, {"winner": False})
    assert json.loads((path / "manifest.json").read_text())["winner"]


def test_what_a_run_left_that_died_at_its_start_is_taken_over(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    for name in (".lock", "experiment.toml", ".manifest.json.1-2.tmp"):
        (path / name).touch()
    RunFolder.create(path, EXPERIMENT, {"method": "fedavg"})
    assert tomllib.loads((path / "experiment.toml").read_text()) == EXPERIMENT
    assert load_run(path).manifest["status"] == "running"


@pytest.mark.parametrize("names", [["experiment.toml"], [".lock", "rounds.jsonl"]])
def test_what_no_run_left_at_its_start_is_refused(names, tmp_path):
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match="exists and is not empty"):
        RunFolder.create(tmp_path, EXPERIMENT, {})
    assert (tmp_path / names[0]).read_text() == "mine"


def test_rows_are_appended_in_order(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=())
    folder.append("rounds", [{"round": 1, "loss": 0.5}, {"round": 2, "loss": 0.25}])
    folder.append("rounds", [{"round": 3, "loss": 0.125}])
    assert rows(folder, "rounds") == [
        {"round": 1, "loss": 0.5},
        {"round": 2, "loss": 0.25},
        {"round": 3, "loss": 0.125},
    ]


def test_numbers_that_json_lacks_are_null_and_numpy_is_plain(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=())
    row = {
        "round": np.int64(1),
        "nan": math.nan,
        "inf": -math.inf,
        "numpy": np.float32(0.5),
        "numpy_nan": np.float32(math.nan),
        "flag": np.bool_(True),
        "nested": {"list": [1.0, math.inf], "array": np.array([1.0, math.nan])},
    }
    plain = {
        "round": 1,
        "nan": None,
        "inf": None,
        "numpy": 0.5,
        "numpy_nan": None,
        "flag": True,
        "nested": {"list": [1.0, None], "array": [1.0, None]},
    }
    folder.append("rounds", [row])
    folder.write_json("summary.json", row)
    assert rows(folder, "rounds") == [plain]
    assert json.loads((folder.path / "summary.json").read_text()) == plain


def test_text_of_a_client_stays_on_its_line(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=())
    reason = "bad\nline\x1b[31m\u2028"
    folder.append("events", [{"round": 1, "kind": "rejected", "reason": reason}])
    text = (folder.path / "events.jsonl").read_bytes()
    assert text.count(b"\n") == 1
    assert b"\x1b" not in text
    assert rows(folder, "events")[0]["reason"] == reason


def test_whole_files(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=())
    folder.write_bytes("notes.txt", "é".encode())
    folder.write_bytes("model.safetensors", b"\x00\x01")
    assert (folder.path / "notes.txt").read_bytes() == b"\xc3\xa9"
    assert (folder.path / "model.safetensors").read_bytes() == b"\x00\x01"


def test_finish_and_update_keep_the_rest_of_the_manifest(tmp_path):
    folder = make_run(tmp_path / "run", status="running")
    folder.update_manifest(flwr_run_id=7)
    folder.finish("failed", "disk full")
    manifest = load_run(folder.path).manifest
    assert manifest["data_fingerprint"] == "f00d"
    assert (manifest["flwr_run_id"], manifest["status"]) == (7, "failed")
    assert manifest["error"] == "disk full"
    assert manifest["finished"] >= manifest["started"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_names_the_file(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=())
    (folder.path / "rounds.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"cannot write .*rounds\.jsonl: No space left"):
        folder.append("rounds", [{"round": 1}])


def test_sync_flushes_each_table_and_then_their_names(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run")
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.fstat(file).st_ino))
    folder.sync()
    names = ["clients.jsonl", "rounds.jsonl", "."]
    assert flushed == [os.stat(folder.path / name).st_ino for name in names]


def test_a_run_says_that_it_is_finished_after_its_lines_are_flushed(tmp_path, monkeypatch):
    """A run that writes no checkpoints has flushed none before."""
    folder, flushed = make_run(tmp_path / "run", status="running"), []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.fstat(file).st_ino))
    lines = (folder.path / "rounds.jsonl").stat().st_ino
    folder.finish("finished")
    assert lines in flushed
    manifest = (folder.path / "manifest.json").stat().st_ino
    assert flushed.index(lines) < flushed.index(manifest)


def test_truncate_after_keeps_rounds_up_to_it_and_drops_a_torn_line(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=((0.1, 0.2), (0.3, 0.4), (0.5, 0.6)))
    folder.append("events", [{"round": 0, "kind": "warning"}, {"round": 3, "kind": "late"}])
    with (folder.path / "clients.jsonl").open("a") as file:
        file.write('{"round": 2, "pha')
    folder.truncate_after(2)
    assert [row["round"] for row in rows(folder, "rounds")] == [1, 2]
    assert [row["round"] for row in rows(folder, "clients")] == [1, 1, 2, 2]
    assert rows(folder, "events") == [{"round": 0, "kind": "warning"}]
    whole = (folder.path / "clients.jsonl").read_bytes()
    folder.truncate_after(2)
    assert (folder.path / "clients.jsonl").read_bytes() == whole


def test_truncated_rows_keep_their_bytes(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=((0.1, 1 / 3), (2 / 3, 1e-7)))
    before = (folder.path / "clients.jsonl").read_bytes()
    folder.truncate_after(2)
    assert (folder.path / "clients.jsonl").read_bytes() == before


def test_resume_clears_what_the_killed_run_left(tmp_path):
    folder = make_run(tmp_path / "run", accuracies=((0.1,), (0.2,)), status="failed")
    (folder.path / "checkpoints").mkdir()
    for leftover in (".summary.json.1-2.tmp", "checkpoints/.5.safetensors.1-2.tmp"):
        (folder.path / leftover).write_text("half")
    resumed = RunFolder.resume(folder.path, 1)
    resumed.append("rounds", [{"round": 2, "again": True}])
    run = load_run(folder.path)
    assert [row["round"] for row in run.rounds] == [1, 2]
    assert run.rounds[1]["again"]
    assert (run.manifest["status"], run.manifest["error"]) == ("running", None)
    assert not list(folder.path.rglob("*.tmp"))


def test_only_the_folder_of_a_run_can_be_resumed(tmp_path):
    with pytest.raises(RunError, match=r"holds no manifest\.json"):
        RunFolder.resume(tmp_path, 1)


KILLED = """
import sys
from pathlib import Path
from fedsuite.results.writer import RunFolder
folder = RunFolder.create(Path(sys.argv[1]), {"method": "fedavg", "seed": 0}, {})
for server_round in range(1, 10**9):
    clients = [
        {"round": server_round, "phase": "evaluate", "client": client, "accuracy": 0.5}
        for client in range(50)
    ]
    folder.append("clients", clients)
    folder.append("rounds", [{"round": server_round, "accuracy_mean": 0.5}])
    folder.write_json("summary.json", {"round": server_round})
"""


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.11])
def test_killed_run_leaves_readable_files_and_can_be_resumed(tmp_path, delay):
    path = tmp_path / "run"
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    try:
        deadline = time.monotonic() + 20
        while not (path / "summary.json").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(delay)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    run = load_run(path)
    last = len(run.rounds)
    assert [row["round"] for row in run.rounds] == list(range(1, last + 1))
    assert run.manifest["status"] == "running"
    # Each file lags the one written before it by one round at most.
    assert run.summary["round"] in (last - 1, last)
    assert last * 50 <= len(run.clients()) <= (last + 1) * 50
    RunFolder.resume(path, last)
    assert len(load_run(path).clients()) == last * 50


def test_folder_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / "run"
    writer = RunFolder.create(path, {"seed": 0}, {})
    with pytest.raises(RunError, match="in use"):
        RunFolder.resume(path, 0)
    writer.finish("stopped")
    RunFolder.resume(path, 0).finish("finished")


def test_a_run_whose_end_cannot_be_flushed_stays_locked_until_it_says_so(
    tmp_path, monkeypatch
):
    """Else its failure would be written into a folder that another server has by then."""
    folder = make_run(tmp_path / "run", status="running")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_space)
        with pytest.raises(RunError, match="No space left"):
            folder.finish("finished")
    with pytest.raises(InUseError):
        RunFolder.resume(folder.path, 0)
    folder.finish("failed", "No space left")
    assert read_manifest(folder.path)["status"] == "failed"
    RunFolder.resume(folder.path, 0).finish("finished")


@pytest.mark.parametrize("status", ["failed", "stopped", "running"])
def test_a_run_that_ended_before_its_first_round_makes_way(tmp_path, status):
    path = tmp_path / "run"
    folder = RunFolder.create(path, EXPERIMENT, {"first": True})
    folder.append("events", [{"round": 1, "kind": "warning"}])
    folder.append("rounds", [])
    (path / "state" / "3").mkdir(parents=True)
    (path / "state" / "3" / "1.1.safetensors").write_bytes(b"")
    folder.finish(status)
    assert not is_used(path)
    RunFolder.create(path, EXPERIMENT, {"first": False}).finish("failed")
    assert read_manifest(path)["first"] is False
    assert sorted(entry.name for entry in path.iterdir()) == [
        ".lock",
        "experiment.toml",
        "manifest.json",
    ]


@pytest.mark.parametrize(
    "leave",
    [
        lambda folder: folder.append("rounds", [{"round": 1}]),
        lambda folder: folder.write_bytes("privacy.ledger", b"{}\n"),
        lambda folder: folder.write_bytes("thesis.txt", b"years of work"),
        lambda folder: (folder.path / "checkpoints").mkdir(),
        lambda folder: folder.finish("finished"),
        lambda folder: folder.write_bytes("manifest.json", b"{"),
    ],
    ids=["round", "release", "other", "checkpoint", "finished", "damaged"],
)
def test_what_a_run_has_done_does_not(tmp_path, leave):
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, {"first": True})
    folder.finish("failed")
    leave(folder)
    assert is_used(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    with pytest.raises(RunError, match="exists and is not empty"):
        RunFolder.create(tmp_path / "run", EXPERIMENT, {"first": False})
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_that_still_begins_is_not_replaced(tmp_path):
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, {"first": True})
    with pytest.raises(RunError, match="in use: a process still writes this run"):
        RunFolder.create(folder.path, EXPERIMENT, {"first": False})
    assert read_manifest(folder.path)["first"] is True
