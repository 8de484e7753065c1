"""Ctrl-C of ``deploy run`` and ``deploy local``: where the run stands, what goes on."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsuite.cli import app
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy.endings import failed_there
from fedsuite.deploy.folders import SuperLinkFolder, init_federation
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.flower import NoAnswerError, StoppedThereError
from fedsuite.engines.processes import World
from fedsuite.results.layout import read_manifest
from fedsuite.results.reader import load_run
from tests.results.made_runs import make_run
from tests.small_runs import write_experiment

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def interrupted_after(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Let Ctrl-C come while a run is followed, when something has happened."""

    def follow(_world: object, _app: object, on_line: Callable[[str], None], *_: object):
        if what() != "nothing":
            on_line("Successfully started run 77")
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsuite.deploy.rehearsal.follow_run", follow)
    monkeypatch.setattr(LocalFederation, "start", lambda self: None)


def told(*words: object) -> str:
    result = RUNNER.invoke(app, ["deploy", *map(str, words)])
    assert result.exit_code == 130, result.output
    (line,) = result.stderr.splitlines()
    return line


def federation(tmp_path: Path) -> tuple[Path, str]:
    """Make a federation with a space in its path; return SuperLink and Flower's home."""
    init_federation(tmp_path / "a b", ["127.0.0.1"], ["a"], port=1)
    folder = tmp_path / "a b" / "superlink"
    return folder, f"FLWR_HOME='{folder}/flwr'"


def test_a_run_on_a_federation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_experiment(tmp_path / "e.toml", run_name="x")
    folder, home = federation(tmp_path)
    run = Path(folder) / "runs" / "x"
    interrupted_after(monkeypatch, lambda: None)
    rest = (
        f"`{home} flwr log 77 fedsuite` shows its log, `{home} flwr stop 77 fedsuite` "
        "stops it"
    )
    line = f"fedsuite: run 77 goes on at the SuperLink, in {run}: {rest}"
    assert told("run", folder, file) == line
    interrupted_after(monkeypatch, lambda: make_run(run, status="running"))
    line = f"fedsuite: run 77 goes on at the SuperLink, after round 1 of 3 in {run}: {rest}"
    assert told("run", folder, file) == line
    assert read_manifest(run)["status"] == "running"


def test_a_run_that_nobody_has_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = federation(tmp_path)
    interrupted_after(monkeypatch, lambda: "nothing")
    assert told("run", folder, write_experiment(tmp_path / "e.toml")) == (
        "fedsuite: stopped before the SuperLink told of the run: `fedsuite deploy status "
        f"'{folder}'` says whether the SuperLink has it"
    )


def test_a_rehearsal_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, run = write_experiment(tmp_path / "e.toml", run_name="x"), tmp_path / "runs/x"
    interrupted_after(monkeypatch, lambda: None)
    assert told("local", file, "--nodes", 1) == (
        "fedsuite: stopped before the first round: nothing is lost"
    )
    interrupted_after(monkeypatch, lambda: make_run(run, status="running"))
    assert told("local", file, "--nodes", 1) == (
        "fedsuite: stopped after round 1 of 3: `fedsuite deploy local "
        f"{run}/experiment.toml --set resume=true --nodes 1` starts it again, for "
        "there is no checkpoint yet"
    )
    assert read_manifest(run)["status"] == "stopped"


def test_a_rehearsal_whose_nodes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its clients keep lies in the nodes' folders, so these must run."""
    file, run = write_experiment(tmp_path / "e.toml", run_name="x"), tmp_path / "runs/x"
    interrupted_after(monkeypatch, lambda: make_run(run, status="running"))
    kept = tmp_path / "kept"
    assert told("local", file, "--nodes", 1, "--output", kept) == (
        f"fedsuite: stopped after round 1 of 3: `fedsuite deploy run {kept}/superlink "
        f"{run}/experiment.toml --set resume=true` starts it again, for there is no "
        f"checkpoint yet, once `fedsuite deploy superlink {kept}/superlink` runs, and "
        f"`fedsuite deploy supernode` with each folder in {kept}/nodes"
    )
    assert read_manifest(run)["status"] == "stopped"


# With real processes

LONG = {"num_rounds": 3000, "checkpoint_every": 1, "run_name": "x", "num_clients": 4}


def interrupted(words: list[object], ready: Callable[[], bool]) -> str:
    """Run a command until a moment comes, interrupt it; return its last line."""
    command = [sys.executable, "-m", "fedsuite", "deploy", *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 300
        while not ready():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    return errors.splitlines()[-1]


def has_come_to(run: Path, server_round: int) -> Callable[[], bool]:
    return lambda: (run / f"checkpoints/round-{server_round:06}.safetensors").exists()


@pytest.mark.slow
def test_the_command_goes_on_with_a_rehearsal(tmp_path: Path) -> None:
    file, run = write_experiment(tmp_path / "e.toml", **LONG), tmp_path / "runs/x"
    line = interrupted(["local", file], has_come_to(run, 1))
    assert read_manifest(run)["status"] == "stopped"
    done = load_run(run).rounds[-1]["round"]
    words = shlex.split(line.split("`")[1])
    assert words[:3] == ["fedsuite", "deploy", "local"]
    interrupted(list(words[2:]), has_come_to(run, done + 2))
    rounds = [row["round"] for row in load_run(run).rounds]
    assert rounds == list(range(1, len(rounds) + 1)) and len(rounds) >= done + 2


@pytest.mark.slow
def test_the_command_stops_a_run_that_went_on(tmp_path: Path) -> None:
    file = write_experiment(tmp_path / "e.toml", **LONG)
    with World() as world:
        deployed = LocalFederation(world, tmp_path / "fed", 2)
        deployed.start()
        folder = deployed.superlink.path
        run = folder / "runs" / "x"
        line = interrupted(["run", folder, file], has_come_to(run, 1))
        done = load_run(run).rounds[-1]["round"]
        deadline = time.monotonic() + 60
        while not has_come_to(run, done + 2)():
            assert time.monotonic() < deadline, "the run did not go on"
            time.sleep(0.1)
        stop = line.split("`")[3]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(stop, shell=True, check=True, env={**os.environ, "PATH": path})
        while json.loads((run / "manifest.json").read_text())["status"] == "running":
            assert time.monotonic() < deadline + 60, "the run was not stopped"
            time.sleep(0.1)
    assert read_manifest(run)["status"] == "stopped"


@pytest.mark.parametrize("full", [False, True])
def test_a_run_whose_superlink_is_gone_or_full(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = federation(tmp_path)
    write_experiment(tmp_path / "e.toml")

    def lost(*given: Callable[[], None]) -> None:
        for _ in range(2):
            given[3]()
        raise (RunError("Task stopped by user") if full else NoAnswerError("no connection"))

    monkeypatch.setattr("fedsuite.deploy.rehearsal.follow_run", lost)
    usage = shutil.disk_usage(tmp_path)
    free = 3 * 2**20 if full else 2**40
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    words = ["deploy", "run", str(folder), str(tmp_path / "e.toml"), "--set=run-name=r"]
    result = RUNNER.invoke(app, words)
    error = str(result.exception)
    assert "\n" not in error and f"fedsuite resume '{folder}/runs/r'" in error
    assert result.output.count(f"the disk of {folder} is full: free some") == full
    if full:
        assert error.startswith(f"the disk of {folder} is full (3.0 MB left): free some")
        assert error.endswith("Task stopped by user")
    else:
        start = shlex.join(["fedsuite", "deploy", "superlink", str(folder)])
        assert error.startswith(f"the SuperLink stopped answering: `{start}` starts it")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            StoppedThereError("it was stopped"),
            "it was stopped: `{} goes on",
        ),
        (NoAnswerError("no connection"), "the SuperLink stopped answering"),
        (RunError("a site is not there"), "a site is not there"),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_what_is_to_do_about_a_run_that_ended_there(
    error: RunError,
    told: str,
    ended: bool,
    begun: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, _ = federation(tmp_path)
    folder = SuperLinkFolder.load(path)
    run = tmp_path / "r"
    again = f"fedsuite resume {shlex.quote(str(run))}`"
    if begun:
        run.mkdir()
    if ended:

        def end(_: object) -> str:
            raise ConfigError("server.pem ended on 2026-11-29: renew it")

        monkeypatch.setattr("fedsuite.deploy.endings.check_superlink", end)
    text = failed_there(error, folder, run)
    if ended and not isinstance(error, StoppedThereError):
        assert text.startswith("server.pem ended on 2026-11-29: renew it; once ")
        assert text.endswith(f"; Flower's words: {error}")
        assert (again in text, "type this again" in text) == (begun, not begun)
    else:
        assert told.format(again) in text
