"""Worlds that Flower's programs live in: environment, ports, processes, signals."""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from fedsuite.core.errors import RunError
from fedsuite.engines import processes
from fedsuite.engines.facts import flower_facts
from fedsuite.engines.flower import in_world
from fedsuite.engines.processes import (
    PortTakenError,
    World,
    clean_python_path,
    executable,
    follow,
    stop_signals_raise,
)
from fedsuite.engines.watchdog import MARKER
from fedsuite.workarounds.flower_release import flower_release
from tests.engines.tiny_app import processes_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

# Environment


def test_world_keeps_foreign_settings_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv("FLWR_HOME", "/home/of/the/user")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_FLEET_API", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with World() as world:
        environment = world.environment
        assert not {"RAY_ADDRESS", "FORCE_COLOR"} & set(environment)
        assert "FLWR_INTERNAL_GRPC_FLEET_API" not in environment
        assert Path(environment["FLWR_HOME"]).is_relative_to(world.folder)
        assert Path(environment["RAY_TMPDIR"]) == world.folder
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["NO_PROXY"] == "127.0.0.1,localhost,example.org"
        assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert MARKER not in os.environ


def test_threads_are_one_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with World() as world:
        assert world.environment["OMP_NUM_THREADS"] == "1"


def test_python_path_cannot_shadow_the_app(tmp_path: Path) -> None:
    shadow, harmless = tmp_path / "shadow", tmp_path / "harmless"
    (shadow / "fedsuite").mkdir(parents=True)
    harmless.mkdir()
    path = os.pathsep.join([str(shadow), "", ".", "relative", str(harmless)])
    assert clean_python_path(path, "fedsuite") == str(harmless)
    # Where the app has no package of its own there is nothing to shadow.
    assert clean_python_path(path, None) == os.pathsep.join([str(shadow), str(harmless)])


@pytest.mark.parametrize("name", ["x" * 40, "with space"])
def test_world_avoids_folders_that_ray_cannot_use(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / name
    base.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(base))
    with World() as world:
        session = "session_2026-11-21_09-09-34_123456_1234567/sockets/plasma_store"
        assert len(str(world.folder / "ray" / session)) <= 103
        assert " " not in str(world.folder)


def test_missing_program_is_named() -> None:
    with pytest.raises(RunError, match=r"flower-nothing is neither in .* pip install"):
        executable("flower-nothing")


def test_facts_name_versions_and_programs() -> None:
    version = flower_release()
    facts = flower_facts()
    assert facts["flwr"] == version
    assert facts["flwr-supported"] is True
    assert facts["transport"] == ("gRPC" if version.startswith("1.39.") else "HTTP")
    for name in ("flwr", "flower-superlink", "flwr-simulation"):
        assert Path(str(facts[f"{name}-path"])).name == name


# Processes and ports


def python_program(world: World, code: str) -> processes.Program:
    return world.start("program", ["python", "-c", code])


@linux
def test_closing_a_world_ends_processes_that_left_their_group_or_environment() -> None:
    code = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
a = subprocess.Popen(sleep, start_new_session=True, env={})
b = subprocess.Popen(sleep, start_new_session=True, cwd="/")
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + sleep[2]
c = subprocess.Popen([*sleep[:2], deaf])
time.sleep(0.3)
print(a.pid, b.pid, c.pid, flush=True)
time.sleep(600)
"""
    with pytest.raises(KeyboardInterrupt), World() as world:
        program = python_program(world, code)
        program.wait_until(lambda: "\n" in program.text)
        pids = {program.process.pid, *map(int, program.text.split())}
        assert len(pids) == 4
        assert world.members() == pids
        raise KeyboardInterrupt
    assert not world.folder.exists()
    assert world.members() == set()
    assert processes_of(str(world.folder)) == []


@linux
def test_reserved_port_serves_us_and_nobody_else() -> None:
    with World() as world, socket.socket() as server, socket.socket() as other:
        port = world.reserve_port()
        assert world.reserve_port() != port
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_program_that_finds_its_port_taken_asks_for_another_try() -> None:
    with World() as world, pytest.raises(PortTakenError):
        code = "raise SystemExit('[Errno 98] address already in use')"
        python_program(world, code).wait_until(lambda: False)


def test_program_that_ends_early_is_an_error_with_its_last_line() -> None:
    with World() as world, pytest.raises(RunError, match="program ended with code 1: no"):
        python_program(world, "print(1); raise SystemExit('no')").wait_until(lambda: False)


def test_killed_program_is_told_as_such() -> None:
    with World() as world:
        program = python_program(world, "import os; os.kill(os.getpid(), 9)")
        program.process.wait()
        with pytest.raises(RunError, match="program was killed by SIGKILL"):
            program.check_alive()


def test_world_is_made_anew_when_a_port_was_taken() -> None:
    worlds: list[World] = []

    def drive(world: World) -> None:
        worlds.append(world)
        if len(worlds) == 1:
            raise PortTakenError

    in_world(drive)
    assert len(worlds) == 2
    assert not any(world.folder.exists() for world in worlds)


def test_ports_taken_again_and_again_are_an_error() -> None:
    def drive(world: World) -> None:
        raise PortTakenError

    with pytest.raises(RunError, match="no free port"):
        in_world(drive)


def test_lines_come_as_they_are_printed_and_without_colours() -> None:
    code = (
        "import time; print('\\x1b[92mone\\x1b[0m é'); print('tw', end='', flush=True); "
        "time.sleep(0.3); print('o'); print(); print('rest', end='')"
    )
    with World() as world:
        waits: list[None] = []
        lines = list(follow(python_program(world, code), lambda: waits.append(None)))
    assert lines == ["one é", "two", "", "rest"]
    assert waits


def test_following_ends_with_what_waiting_raises() -> None:
    def gone() -> None:
        raise RunError("the SuperLink is gone")

    with World() as world, pytest.raises(RunError, match="gone"):
        list(follow(python_program(world, "import time; time.sleep(60)"), gone))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stop_signals_unwind_the_stack(number: signal.Signals) -> None:
    with pytest.raises(SystemExit) as stopped, stop_signals_raise(), World() as world:
        os.kill(os.getpid(), number)
        time.sleep(5)
    assert stopped.value.code == 128 + number
    assert not world.folder.exists()
    assert signal.getsignal(number) is signal.SIG_DFL


def test_handlers_of_the_program_itself_stay() -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(True))
    try:
        with stop_signals_raise():
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [True]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_worlds_work_outside_the_main_thread() -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            in_world(lambda world: None)
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert problems == []
