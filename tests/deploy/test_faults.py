"""Faults of real processes: what is killed, what comes back, and what is lost: nothing.

All of it takes minutes, since Flower notices a death by missing heartbeats.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedsuite
from fedsuite.cli import app
from fedsuite.core.errors import RunError
from fedsuite.deploy.folders import SUPERLINK
from fedsuite.deploy.rehearsal import LocalFederation, submit
from fedsuite.engines.processes import Program, World
from fedsuite.results.reader import load_run
from tests.deploy.accidents import (
    FEDAKD,
    descendants,
    final_bits,
    kill,
    undisturbed,
    values,
    when,
)
from tests.engines.tiny_app import processes_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("FEDSUITE_FAULTS") != "all", reason="minutes: `make faults` runs it"
    ),
]


LONG = 60
"""Rounds of a run in which a node is away for a minute or more; one may take but 3 s."""


@contextlib.contextmanager
def standing(folder: Path, num_nodes: int = 2) -> Iterator[LocalFederation]:
    """Yield a federation whose processes have started."""
    with World("fedsuite") as world:
        federation = LocalFederation(world, folder / "federation", num_nodes)
        federation.start()
        yield federation


@contextlib.contextmanager
def with_a_watched_node(folder: Path) -> Iterator[tuple[LocalFederation, Program]]:
    """Yield a federation, and the command that watches over its second node."""
    with World("fedsuite") as world:
        federation = LocalFederation(world, folder / "federation", 2)
        federation.start_superlink()
        federation.start_node(0)
        yield federation, watched_node(world, federation, world.reserve_port())


def watched_node(world: World, federation: LocalFederation, port: int) -> Program:
    """Start the command of the second node; return it once the node has joined."""
    words = [sys.executable, "-m", "fedsuite", "deploy", "supernode"]
    words += [str(federation.nodes[1].path), "--runtime-port", str(port)]
    # The command itself is no app that was sent: it may come from here.
    world.environment["PYTHONPATH"] = str(Path(fedsuite.__file__).parents[1])
    watcher = world.start("watched", words)
    del world.environment["PYTHONPATH"]
    watcher.wait_until(lambda: "SuperNode ID" in watcher.text)
    return watcher


@pytest.mark.parametrize("after", [0.0, 1.5, 3.0])
def test_a_node_is_killed_and_comes_back_with_its_models(
    after: float, tmp_path: Path
) -> None:
    """Before it answers, while it does, and after: a round takes three seconds or six."""
    with with_a_watched_node(tmp_path) as (federation, watcher):
        lines: list[str] = []

        def accident() -> None:
            time.sleep(after)
            for pid in descendants(watcher.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        # The SuperLink refuses the node until a minute after its last sign of life.
        config = values(tmp_path, num_rounds=LONG, evaluate_every=LONG, round_timeout=30.0)
        federation.run(config, when(lines, f"round  1 of {LONG}", accident))
        assert "SuperNode ended" in watcher.text
    run = load_run(tmp_path / "runs" / "run")
    assert run.manifest["status"] == "finished"
    lost = {
        (e["round"], e["client"]) for e in run.events() if e["kind"] == "rejected-reply"
    }
    # Only the dead node's clients, and not in the last round: it had come back.
    assert {client for _, client in lost} <= {1, 3, None}
    assert all(server_round < LONG for server_round, _ in lost)
    rows = [r for r in run.clients() if r["round"] == LONG and r["phase"] == "train"]
    last = {r["client"] for r in rows}
    assert last == {0, 1, 2, 3}
    states = tmp_path / "federation" / "nodes" / "node-1" / "state" / "run"
    assert {p.name for p in states.iterdir()} == {"1", "3"}


def test_a_watcher_is_killed_and_started_again(tmp_path: Path) -> None:
    """Its node does not go on without it, and so does not hold the port."""
    with World("fedsuite") as world:
        federation = LocalFederation(world, tmp_path / "federation", 2)
        federation.start_superlink()
        federation.start_node(0)
        port = world.reserve_port()
        first = watched_node(world, federation, port)
        below = descendants(first.process.pid)
        first.process.kill()
        first.process.wait()
        watched_node(world, federation, port)
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
        federation.run(values(tmp_path), print)
    assert load_run(tmp_path / "runs" / "run").manifest["status"] == "finished"


@pytest.mark.parametrize(
    "words",
    [["run", "--engine=ray"], ["run", "--engine=deployment"], ["deploy", "local"]],
    ids=" ".join,
)
def test_a_killed_driver_leaves_nothing_but_its_run(
    words: list[str], tmp_path: Path
) -> None:
    if "--engine=ray" in words:
        pytest.importorskip("ray")
    (tmp_path / "tmp").mkdir()
    lines = [f"{key} = {value!r}" for key, value in FEDAKD.items()]
    (tmp_path / "e.toml").write_text("\n".join([*lines, "report = false"]).lower())
    command = [sys.executable, "-m", "fedsuite", *words, str(tmp_path / "e.toml")]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    environment["PYTHONPATH"] = str(Path(fedsuite.__file__).parents[1])
    options: dict[str, Any] = {
        "cwd": tmp_path,
        "env": environment,
        "start_new_session": True,
    }
    driver = subprocess.Popen([*command, "--set=num-rounds=500"], **options)
    rounds = tmp_path / "runs" / "run" / "rounds.jsonl"
    wait_until(rounds.exists)
    assert len(processes_of(str(tmp_path))) > 5
    driver.kill()
    driver.wait()
    wait_until(lambda: not processes_of(str(tmp_path)))
    wait_until(lambda: not list((tmp_path / "tmp").glob("fed-*")))


def test_the_superlink_is_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    with standing(tmp_path) as federation:
        lines: list[str] = []

        def accident() -> None:
            link = federation.running[SUPERLINK][0].process
            link.kill()
            link.wait()
            time.sleep(3)
            federation.start_superlink()

        with contextlib.suppress(RunError):
            federation.run(values(tmp_path), when(lines, "round 2 of 4", accident))
        folder = tmp_path / "runs" / "run"
        wait_for(folder, "finished")
    assert final_bits(load_run(folder)) == final_bits(expected)


def test_a_second_run_beside_the_first(tmp_path: Path) -> None:
    """Each has its own outcome: the second, which is the newer one, fails."""
    expected = undisturbed(tmp_path)
    failures: list[Exception] = []
    with standing(tmp_path) as federation:

        def second() -> None:
            changes = {"dataset": "mnist", "data_dir": "/nowhere", "run_name": "second"}
            try:
                submit(
                    federation.superlink, values(tmp_path, **changes), print, "127.0.0.1"
                )
            except RunError as error:
                failures.append(error)

        lines: list[str] = []
        federation.run(values(tmp_path), when(lines, "round 1 of 4", second))
        deadline = time.monotonic() + 120
        while not failures and time.monotonic() < deadline:
            time.sleep(0.5)
    assert final_bits(load_run(tmp_path / "runs" / "run")) == final_bits(expected)
    (failure,) = failures
    assert "/nowhere" in str(failure)


@pytest.mark.parametrize("what", ["server", "serverapp"])
def test_what_serves_is_killed_and_the_run_is_resumed(what: str, tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    with standing(tmp_path) as federation:
        lines: list[str] = []
        over = threading.Event()

        def accident() -> None:
            if what == "server":
                kill(federation.running[SUPERLINK])
                time.sleep(3)
                federation.start_superlink()
            else:
                helper = federation.running[SUPERLINK][1].process
                for pid in descendants(helper.pid):
                    os.kill(pid, signal.SIGKILL)
            over.set()

        with pytest.raises(RunError):
            federation.run(values(tmp_path), when(lines, "round 2 of 4", accident))
        assert over.wait(120)
        folder = str(tmp_path / "runs" / "run")
        result = CliRunner().invoke(app, ["resume", folder])
        assert result.exit_code == 0, result.output
    run = load_run(tmp_path / "runs" / "run")
    assert "after round 2" in result.output
    assert run.manifest["status"] == "finished"
    assert final_bits(run) == final_bits(expected)


def wait_for(folder: Path, status: str) -> None:
    wait_until(lambda: load_run(folder).manifest["status"] == status)


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.5)
