import importlib.metadata
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import flatten_dict, get_fab_config, parse_config_args
from hypothesis import given
from hypothesis import strategies as st

import fedsuite
from fedsuite.engines import processes
from fedsuite.engines.deployment import node_config_text, run_deployment
from fedsuite.engines.flower import (
    Outcome,
    describe_failure,
    flower_facts,
    in_world,
    parse_outcome,
    stage_app,
)
from fedsuite.engines.processes import (
    MARKER,
    PortTakenError,
    World,
    clean_python_path,
    executable,
    follow,
    stop_signals_raise,
)
from fedsuite.engines.ray import run_ray
from fedsuite.errors import RunError

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ODD_VALUES: dict[str, bool | int | float | str] = {
    "yes": True,
    "no": False,
    "small": 1e-05,
    "precise": 0.1 + 0.2,
    "whole": 3.0,
    "negative": -7,
    "empty": "",
    "quotes": "a'b\"c",
    "backslash": "C:\\new\\",
    "lines": "one\ntwo\r\n\tthree",
    "unicode": "Größe 分割 \U0001f338",
    "pairs": "x=1 y='2' # no comment",
    "table": '[a]\nb = """',
    "number-like": "1e-05",
}

SERVER_APP = """
import json, os, time
from pathlib import Path
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from tiny_app.shared import GREETING

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = dict(context.run_config)
    report = Path(config["report"])
    facts = {"config": config, "folder": os.getcwd(), "partitions": []}
    facts["greeting"] = GREETING
    report.write_text(json.dumps(facts))
    print("the ServerApp has begun", flush=True)
    if config["fail"]:
        raise RuntimeError(config["fail"])
    while len(nodes := sorted(grid.get_node_ids())) < config["nodes"]:
        time.sleep(0.05)
    content = RecordDict({"config": ConfigRecord({"sleep": config["sleep"]})})
    messages = [Message(content, node, "train") for node in nodes]
    for reply in grid.send_and_receive(messages):
        facts["partitions"].append(dict(reply.content["answer"]))
    report.write_text(json.dumps(facts))
"""

CLIENT_APP = """
import os, time
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from tiny_app.shared import GREETING

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    time.sleep(message.content["config"]["sleep"])
    answer = {key: value for key, value in context.node_config.items()}
    answer |= {"text": context.run_config["quotes"], "greeting": GREETING}
    return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny_app"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "shared.py").write_text("GREETING = 'stale'")
    (folder / "__init__.py").touch()
    (folder / "shared.py").write_text("GREETING = 'hello'")
    (folder / "notes.txt").write_text("stays at home")
    (folder / "server_app.py").write_text(SERVER_APP)
    (folder / "client_app.py").write_text(CLIENT_APP)
    return folder


def config_for(report: Path, **changes: Any) -> dict[str, Any]:
    own = {"report": str(report), "fail": "", "nodes": 1, "sleep": 0.0}
    return ODD_VALUES | own | changes


def processes_of(folder: str) -> list[str]:
    """Living processes that stand in a folder or were started with it in sight."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            seen += os.readlink(entry / "cwd").encode()
        except OSError:
            continue
        if folder.encode() in seen:
            found.append(f"{entry.name} {seen[:200]!r}")
    return found


def assert_nothing_left(neutral_folder: str) -> None:
    world = Path(neutral_folder).parent
    assert world.name.startswith("fed-")
    assert not world.exists()
    if sys.platform == "linux":
        assert processes_of(str(world)) == []


# Staging


def staged_config(app: Path) -> dict[str, Any]:
    return tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def test_staged_app_holds_the_package_and_nothing_else(
    tmp_path: Path, package: Path
) -> None:
    app = stage_app(tmp_path / "an app", {"key": 1}, package=package)
    files = {str(f.relative_to(app)) for f in app.rglob("*") if f.is_file()}
    assert files == {
        "pyproject.toml",
        "tiny_app/__init__.py",
        "tiny_app/client_app.py",
        "tiny_app/server_app.py",
        "tiny_app/shared.py",
    }
    assert staged_config(app)["components"] == {
        "serverapp": "tiny_app.server_app:app",
        "clientapp": "tiny_app.client_app:app",
    }


def test_by_default_the_running_fedsuite_is_staged(tmp_path: Path) -> None:
    app = stage_app(tmp_path, {})
    source = Path(fedsuite.__file__).parent
    for name in ("__init__.py", "engines/flower.py"):
        assert (app / "fedsuite" / name).read_bytes() == (source / name).read_bytes()


def test_flower_reads_the_staged_values_exactly(tmp_path: Path, package: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    app = stage_app(tmp_path / "app", ODD_VALUES, package=package)
    config = get_fab_config(build_fab_from_disk(app))["tool"]["flwr"]["app"]["config"]
    read = flatten_dict(config)
    assert read == ODD_VALUES
    assert [type(v) for v in read.values()] == [type(v) for v in ODD_VALUES.values()]


values = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), values))
def test_any_node_config_survives_flowers_command_line(config: dict[str, Any]) -> None:
    read = parse_config_args([node_config_text(config)])
    assert read == config
    for key, value in config.items():
        assert type(read[key]) is type(value)
        if isinstance(value, float):
            assert math.copysign(1, read[key]) == math.copysign(1, value)


# Outcomes


def answer(*statuses: str) -> str:
    runs = [{"status": s, "status-details": "Simulation failed"} for s in statuses]
    return json.dumps({"success": True, "runs": runs})


def test_outcome_is_read_from_flwr_ls() -> None:
    assert parse_outcome(answer()) is None
    completed = parse_outcome(answer("finished:completed"))
    assert completed is not None and completed.finished and completed.completed
    failed = parse_outcome(answer("finished:failed"))
    assert failed is not None and failed.finished and not failed.completed
    running = parse_outcome(answer("running"))
    assert running is not None and not running.finished and not running.completed


@pytest.mark.parametrize("text", ["", "Error: no SuperLink", "[]", "{}"])
def test_unreadable_outcome_is_a_run_error(text: str) -> None:
    with pytest.raises(RunError, match="flwr ls"):
        parse_outcome(text)


def test_failure_is_described_by_its_cause() -> None:
    details = "ServerApp failed with exception: key seed = -1:\n  expected >= 0"
    failed = Outcome("finished:failed", details)
    expected = "the run ended as finished:failed: key seed = -1: expected >= 0"
    assert describe_failure(failed, ["a line"]) == expected


def test_failure_without_cause_quotes_the_end_of_the_log() -> None:
    log = [f"line {i}" for i in range(9)] + ["", "  the last  "]
    text = describe_failure(Outcome("finished:failed", "N/A"), log)
    assert text.endswith(": line 5 | line 6 | line 7 | line 8 | the last")
    assert describe_failure(None, []) == "flwr run refused the app: it left no log"


# Environment


def test_world_keeps_foreign_settings_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv("FLWR_HOME", "/home/of/the/user")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_FLEET_API", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NO_PROXY", "example.org")
    with World() as world:
        environment = world.environment
        assert "RAY_ADDRESS" not in environment
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
    version = importlib.metadata.version("flwr")
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


# Real runs


def run_and_read(run: Callable[..., None], report: Path, **options: Any) -> dict[str, Any]:
    lines: list[str] = []
    run(on_line=lines.append, **options)
    assert "the ServerApp has begun" in lines
    return json.loads(report.read_text())


@pytest.mark.slow
def test_ray_and_deployment_run_side_by_side_and_leave_nothing(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder with spaces"
    # The caller's folder must not matter, even if it holds another copy of the app.
    (folder / "tiny_app").mkdir(parents=True)
    (folder / "tiny_app" / "shared.py").write_text("GREETING = 'shadow'")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    drivers: dict[Callable[..., None], int] = {run_ray: 4, run_deployment: 2}
    with ThreadPoolExecutor() as pool:
        running = []
        for index, (driver, nodes) in enumerate(drivers.items()):
            report = folder / f"report {index}.json"
            config = config_for(report, nodes=nodes)
            options = {"run_config": config, "num_supernodes": nodes, "package": package}
            running.append((config, pool.submit(run_and_read, driver, report, **options)))
        for config, future in running:
            facts = future.result()
            assert facts["config"] == config
            assert facts["greeting"] == "hello"
            expected = [
                {
                    "partition-id": i,
                    "num-partitions": config["nodes"],
                    "text": ODD_VALUES["quotes"],
                    "greeting": "hello",
                }
                for i in range(config["nodes"])
            ]
            found = sorted(facts["partitions"], key=lambda p: p["partition-id"])
            assert found == expected
            assert_nothing_left(facts["folder"])


@pytest.mark.slow
def test_failing_server_app_is_a_run_error_with_its_message(
    tmp_path: Path, package: Path
) -> None:
    report = tmp_path / "report.json"
    config = config_for(report, fail="key seed = -1: expected a whole number >= 0")
    with pytest.raises(
        RunError, match=r"failed: key seed = -1: expected a whole number >= 0$"
    ):
        run_deployment(config, num_supernodes=1, on_line=lambda line: None, package=package)
    assert_nothing_left(json.loads(report.read_text())["folder"])


@pytest.mark.slow
def test_terminated_ray_run_leaves_nothing(tmp_path: Path, package: Path) -> None:
    report = tmp_path / "report.json"
    config = config_for(report, nodes=2, sleep=600.0)
    code = (
        "import json, sys; from pathlib import Path; "
        "from fedsuite.engines.ray import run_ray; "
        "config, package = json.loads(sys.argv[1]); "
        "run_ray(config, num_supernodes=2, package=Path(package))"
    )
    arguments = json.dumps([config, str(package)])
    driver = subprocess.Popen(
        [sys.executable, "-c", code, arguments], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    for line in driver.stdout:
        if "the ServerApp has begun" in line:
            break
    time.sleep(2.0)  # let Ray start its daemons
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(timeout=30) == 128 + signal.SIGTERM
    driver.stdout.close()
    assert_nothing_left(json.loads(report.read_text())["folder"])
