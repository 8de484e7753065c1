"""What begins before a run's keys are read: SuperLink, Ray, simulation, Ray's workers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.engines import early, ray
from fedsuite.engines.early import JOB_VARIABLE, EarlyWorld
from fedsuite.engines.processes import World
from fedsuite.experiment.plug_ins import ALLOWED_CODE_VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

MADE = """#!{python}
import json, os, sys, time
if "ray" in sys.modules:
    sys.modules["ray"].init(include_dashboard=False)
    sys.modules["ray"].init()
facts = {{
    "words": sys.argv[1:],
    "shared": [name for name in ("colorsys", "this") if name in sys.modules],
    "fedsuite": "fedsuite" in sys.modules,
    "address": os.environ.get("RAY_ADDRESS"),
    "told": os.environ.get("TOLD"),
    "mark": "FEDSUITE_ENGINE_ID" in os.environ,
    "folder": os.getcwd(),
    "path": [path for path in sys.path if path == "/its/own"],
}}
print(json.dumps(facts), flush=True)
if "stay" in sys.argv:
    time.sleep(600)
if "read" in sys.argv:
    print(sys.stdin.read())
sys.exit(sys.argv[1] if sys.argv[1:] == ["no"] else len(sys.argv[1:]) - 1)
"""
RAY = """
import os, time
def init(**options):
    if "log_to_driver" in options:
        assert options == {"include_dashboard": False, "log_to_driver": False}
        assert "RAY_ADDRESS" not in os.environ
        time.sleep(0.3)
def get_runtime_context():
    class Context:
        gcs_address = "made:1"
    return Context
"""
PATIENCE_S = 20


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a program that tells what it finds, and a Ray that starts soon."""
    program = tmp_path / "made"
    program.write_text(MADE.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "ray.py").write_text(RAY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setattr(early, "_PROGRAMS", ("made-link",))
    monkeypatch.setattr(early, "_SIMULATION", "made-simulation")
    monkeypatch.setattr(early, "own_script", lambda _: str(program))
    monkeypatch.setattr(early, "_LOADED", ("colorsys", "no_such_module"))
    monkeypatch.setattr(early, "_LOADED_TOO", ("this",))
    monkeypatch.setattr(early, "launch_superlink", lambda *_: None)
    return tmp_path


def facts_in(text: str) -> dict[str, Any]:
    """Return what a program tells."""
    (line,) = (line for line in text.splitlines() if line.startswith("{"))
    facts: dict[str, Any] = json.loads(line)
    return facts


def started(world: World, *command: str) -> dict[str, Any]:
    """Start a program by its name, as Flower does, and return what it tells."""
    done = subprocess.run(
        command,
        env=world.environment,
        cwd=world.neutral,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == len(command) - 2, done.stderr
    return facts_in(done.stdout)


def worker(world: EarlyWorld, script: Path, *words: str) -> dict[str, Any]:
    """Start one of Ray's workers as Ray does, and return what it tells."""
    file = world._sockets / "simulation.environment"
    told = json.loads(file.read_text())
    job = json.loads(told.pop(JOB_VARIABLE))["runtime_env"]
    assert job["env_vars"] == told
    command = f"exec {job['py_executable']} -u {script} {' '.join(words)}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={"TOLD": "worker", "PYTHONPATH": "/its/own"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return facts_in(done.stdout)


def test_a_simulation_is_loaded_and_told_all(made: Path) -> None:
    with EarlyWorld() as world:
        world.tell({"TOLD": "a b"})
        assert started(world, "made-simulation", "--token", "a b") == {
            "words": ["--token", "a b"],
            "shared": ["colorsys", "this"],
            # A run brings its own.
            "fedsuite": False,
            "address": "made:1",
            "told": "a b",
            "mark": True,
            "folder": str(world.neutral),
            "path": [],
        }
        assert world.loaded.process.wait(PATIENCE_S) == 1


def test_a_second_simulation_is_a_process_of_its_own(made: Path) -> None:
    with EarlyWorld() as world:
        world.tell({"TOLD": "x"})
        first = world.start("first", ["made-simulation", "stay"])
        first.wait_until(lambda: "{" in first.text)
        facts = started(world, "made-simulation", "again")
        assert (facts["words"], facts["shared"], facts["told"]) == (["again"], [], "x")
        first.check_alive()


def test_a_simulation_that_died_is_started_anew(made: Path) -> None:
    with EarlyWorld() as world:
        world.tell({"TOLD": "x"})
        assert started(world, "made-link", "x")["shared"] == ["colorsys"]
        world.loaded.process.kill()
        facts = started(world, "made-simulation", "x")
        assert (facts["shared"], facts["told"], facts["address"]) == ([], "x", None)


@pytest.mark.parametrize("program", ["made-link", "made-simulation"])
def test_what_dies_while_it_loads_is_started_anew(
    made: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    # Whoever asks before the modules are there waits for an answer.
    (made / "path" / "deadly.py").write_text("import os, time; time.sleep(1); os._exit(3)")
    monkeypatch.setattr(early, "_LOADED", ("deadly",))
    with EarlyWorld() as world:
        assert started(world, program, "x")["shared"] == []


def test_a_ray_that_does_not_start_is_left_to_flower(made: Path) -> None:
    broken = RAY.replace("time.sleep(0.3)", "raise OSError('no room')")
    (made / "path" / "ray.py").write_text(broken)
    with EarlyWorld() as world:
        assert started(world, "made-simulation", "x")["address"] is None
        assert "no room" in world.loaded.text


def test_programs_are_forks_that_share_what_was_imported(made: Path) -> None:
    with EarlyWorld() as world:
        for words in (["one"], ["two", "words"]):
            facts = started(world, "made-link", *words)
            assert facts["words"] == words
            # What only workers need came later.
            assert facts["shared"] == ["colorsys"]


def test_workers_are_forks_that_share_what_was_imported(made: Path) -> None:
    with EarlyWorld() as world:
        world.tell({})
        for word in ("one", "two"):
            assert worker(world, made / "made", word) == {
                "words": [word],
                "shared": ["colorsys", "this"],
                "fedsuite": False,
                # Ray, which reads its variables when it is imported, is not there yet.
                "address": None,
                "told": "worker",
                "mark": False,
                "folder": "/",
                "path": ["/its/own"],
            }
        plain = made / "plain.py"
        plain.write_text("""print('{"end": "its last line"}')""")
        assert worker(world, plain) == {"end": "its last line"}
        # The simulation still waits.
        assert started(world, "made-simulation", "x")["address"] == "made:1"


@pytest.mark.parametrize("program", ["made-link", "made-simulation"])
def test_a_stand_in_has_the_files_and_the_end_of_its_program(
    made: Path, program: str
) -> None:
    with EarlyWorld() as world:
        world.tell({})
        command = [str(world._stand_ins / program)]
        done = subprocess.run(
            [*command, "no"], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stderr.strip()) == (1, "no")
        assert facts_in(done.stdout)["words"] == ["no"]
        read = subprocess.run(
            [*command, "read"],
            input="é",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert (read.returncode, read.stdout.splitlines()[-1]) == (0, "é")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stand_in_ends_as_its_program_does(made: Path, number: signal.Signals) -> None:
    with EarlyWorld() as world:
        program = world.start("link", ["made-link", "stay"])
        program.wait_until(lambda: "{" in program.text)
        if number is signal.SIGTERM:
            program.process.terminate()
        else:
            (fork,) = processes_named("made")
            os.kill(fork, number)
        assert program.process.wait(PATIENCE_S) == -number
        # Its files are closed a moment before it is gone.
        until = time.monotonic() + PATIENCE_S
        while processes_named("made") and time.monotonic() < until:
            time.sleep(0.02)
        assert processes_named("made") == []


def test_forks_draw_numbers_of_their_own(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "_LOADED", ("numpy.random",))
    script = made / "draws.py"
    script.write_text(
        "import json, random, numpy\n"
        "print(json.dumps({'drawn': [random.random(), numpy.random.rand()]}))"
    )
    with EarlyWorld() as world:
        world.tell({})
        first, second = (worker(world, script)["drawn"] for _ in range(2))
    assert not set(first) & set(second)


def test_a_program_outlives_the_process_that_forked(made: Path) -> None:
    with EarlyWorld() as world:
        world.tell({"TOLD": "x"})
        program = world.start("link", ["made-link", "stay"])
        program.wait_until(lambda: "{" in program.text)
        (fork,) = processes_named("made")
        assert os.getsid(fork) == fork
        for other in world.members() - {fork, program.process.pid}:
            os.kill(other, signal.SIGKILL)
        # It answers nobody in that process's place.
        assert started(world, "made-link", "x")["shared"] == []
        assert worker(world, made / "made", "x")["shared"] == []
        program.check_alive()


def processes_named(name: str) -> list[int]:
    """Return the ids of living processes by the name that `ps` shows."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "status").read_text()
        except OSError:
            continue
        if f"Name:\t{name}\n" in status and "State:\tZ" not in status:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("threads", [True, False])
def test_without_a_process_to_fork_all_are_new_pythons(
    made: Path, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    # A fork would have the locks of other threads, and not the threads.
    thread = "Thread(target=time.sleep, args=[60], daemon=True).start()"
    lines = f"import time; from threading import Thread; {thread}"
    (made / "path" / "threaded.py").write_text(lines if threads else "raise SystemExit")
    monkeypatch.setattr(early, "_LOADED", ("threaded",))
    with EarlyWorld() as world:
        world.tell({})
        assert started(world, "made-link", "one")["shared"] == []
        assert worker(world, made / "made", "one")["shared"] == []
        expected = ["this"] if threads else []
        assert started(world, "made-simulation", "x")["shared"] == expected


def test_what_nobody_asks_ends_with_its_world(made: Path) -> None:
    with EarlyWorld() as world:
        started(world, "made-simulation", "x")
        world.loaded.process.wait(PATIENCE_S)
        members = world.members()
        # Ray, and two that fork.
        assert len(members) == 3
    assert not world.members()
    assert not any(Path(f"/proc/{member}/cwd").exists() for member in members)


def test_a_superlink_that_cannot_start_leaves_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds: list[World] = []

    def launch(world: World, _options: Any) -> None:
        worlds.append(world)
        raise ConfigError("no flower-superlink")

    monkeypatch.setattr(early, "launch_superlink", launch)
    with pytest.raises(ConfigError, match="no flower-superlink"):
        EarlyWorld()
    (world,) = worlds
    assert not world.folder.exists()
    assert not world.members()


def test_a_run_takes_the_world_that_has_begun(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(early, "launch_superlink", lambda *_: "its SuperLink")
    monkeypatch.setattr(ray, "wait_for", seen.append)

    def run_app(world: EarlyWorld, *_: object) -> None:
        seen.append(world)
        told = json.loads((world._sockets / "simulation.environment").read_text())
        assert told[ALLOWED_CODE_VARIABLE] == "my_code:Net"

    monkeypatch.setattr(ray, "run_app", run_app)
    with EarlyWorld() as world:
        ray.run_ray({"model": "my_code:Net"}, num_supernodes=1, begun=world)
        assert seen == ["its SuperLink", world]
        assert not world.folder.exists()


def test_nothing_begins_where_stand_ins_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert early.can_begin()
    with monkeypatch.context() as patch:
        patch.setattr(early, "own_script", lambda name: name != "flwr" and name)
        assert not early.can_begin()
    flags = os.ST_NOEXEC | os.ST_NOSUID
    place = os.statvfs_result((0,) * 8 + (flags, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: place)
    assert not early.can_begin()


def test_the_programs_and_modules_that_are_loaded_are_there_and_know_nothing_of_ray() -> (
    None
):
    pytest.importorskip("ray")
    assert early.can_begin()
    for program in (*early._PROGRAMS, early._SIMULATION):
        assert "python" in Path(early.own_script(program)).read_text().splitlines()[0]
    modules = (*early._LOADED, *early._LOADED_TOO)
    code = (
        "import importlib, os, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(len(os.listdir('/proc/self/task')), 'ray' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]
