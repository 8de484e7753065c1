"""What begins before a run's keys are read: SuperLink, Ray, simulation, Ray's workers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.engines import early
from fedsuite.engines.early import JOB_VARIABLE, EarlyWorld, begun_for
from fedsuite.engines.processes import World

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

MADE = """#!{python}
import json, os, sys, time
facts = {{
    "words": sys.argv[1:],
    "shared": "colorsys" in sys.modules,
    "fedsuite": "fedsuite" in sys.modules,
    "ray": "ray" in sys.modules,
    "address": os.environ.get("RAY_ADDRESS"),
    "told": os.environ.get("TOLD"),
    "folder": os.getcwd(),
    "path": [path for path in sys.path if path == "/its/own"],
}}
print(json.dumps(facts), flush=True)
if "stay" in sys.argv:
    time.sleep(600)
"""
RAY = """
import os
def init(**options):
    assert options == {"include_dashboard": False, "log_to_driver": False}
    assert "RAY_ADDRESS" not in os.environ
def get_runtime_context():
    class Context:
        gcs_address = "made:1"
    return Context
"""
PATIENCE_S = 20


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a simulation that tells what it finds, and a Ray that starts at once."""
    program = tmp_path / "made-program"
    program.write_text(MADE.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "ray.py").write_text(RAY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setattr(early, "_PROGRAM", program.name)
    monkeypatch.setattr(early, "own_script", lambda _: str(program))
    monkeypatch.setattr(early, "_LOADED", ("colorsys", "no_such_module"))
    monkeypatch.setattr(early, "launch_superlink", lambda *_: None)
    return tmp_path


def facts_in(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def wait_for_facts(world: EarlyWorld, count: int = 1) -> list[dict[str, Any]]:
    """Return what was printed by programs that the begun process became."""
    until = time.monotonic() + PATIENCE_S
    while len(facts_in(world.simulation.text)) < count and time.monotonic() < until:
        time.sleep(0.02)
    return facts_in(world.simulation.text)


def started_by_name(world: World, *words: str) -> list[dict[str, Any]]:
    """Start the simulation as Flower does, by its name, and return what it says itself."""
    done = subprocess.run(
        [early._PROGRAM, *words],
        env=world.environment,
        cwd=world.neutral,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return facts_in(done.stdout)


def worker(world: EarlyWorld, script: Path, *words: str) -> list[dict[str, Any]]:
    """Start one of Ray's workers as Ray does, and return what it says itself."""
    file = world._sockets / "simulation.socket.environment"
    job = json.loads(json.loads(file.read_text())[JOB_VARIABLE])
    command = f"exec {job['runtime_env']['py_executable']} -u {script} {' '.join(words)}"
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


def wait_for_socket(world: EarlyWorld, name: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not (world._sockets / f"{name}.socket").exists() and time.monotonic() < until:
        time.sleep(0.02)


@contextmanager
def early_world() -> Iterator[EarlyWorld]:
    """Yield a world that can be asked, as after the SuperLink's second of start."""
    with EarlyWorld() as world:
        wait_for_socket(world, "simulation")
        yield world


def test_a_begun_simulation_is_told_all(made: Path) -> None:
    with early_world() as world:
        world.tell({"TOLD": "a b"})
        assert started_by_name(world, "--token", "a b") == []
        (facts,) = wait_for_facts(world)
        assert facts == {
            "words": ["--token", "a b"],
            "shared": True,
            # A run brings its own.
            "fedsuite": False,
            "ray": True,
            "address": "made:1",
            "told": "a b",
            "folder": str(world.neutral),
            "path": [],
        }
        assert world.simulation.process.wait(PATIENCE_S) == 0


def test_a_second_start_while_the_first_goes_on_is_the_program_itself(made: Path) -> None:
    with early_world() as world:
        world.tell({"TOLD": "x"})
        started_by_name(world, "stay")
        wait_for_facts(world)
        (facts,) = started_by_name(world, "again")
        assert (facts["words"], facts["shared"], facts["told"]) == (["again"], False, "x")
        assert world.simulation.process.poll() is None


def test_a_simulation_that_died_is_started_anew(made: Path) -> None:
    with early_world() as world:
        world.tell({"TOLD": "x"})
        wait_for_socket(world, "workers")
        world.simulation.process.kill()
        (facts,) = started_by_name(world, "x")
        assert (facts["shared"], facts["told"], facts["address"]) == (False, "x", None)


def test_a_simulation_that_dies_while_it_loads_is_started_anew(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever asks before the modules are there waits for an answer.
    (made / "path" / "deadly.py").write_text("import os, time; time.sleep(1); os._exit(3)")
    monkeypatch.setattr(early, "_LOADED", ("deadly",))
    with early_world() as world:
        (facts,) = started_by_name(world, "x")
        assert facts["words"] == ["x"]


def test_a_ray_that_does_not_start_is_left_to_flower(made: Path) -> None:
    (made / "path" / "ray.py").write_text("def init(**_): raise OSError('no room')")
    with early_world() as world:
        started_by_name(world)
        (facts,) = wait_for_facts(world)
        assert facts["address"] is None
        assert "no room" in world.simulation.text


def test_workers_are_forks_that_share_what_was_imported(made: Path) -> None:
    with early_world() as world:
        world.tell({})
        wait_for_socket(world, "workers")
        script = made / "made-program"
        assert worker(world, script, "one") == worker(world, script, "two") == []
        facts = wait_for_facts(world, 2)
        assert sorted(fact.pop("words") for fact in facts) == [["one"], ["two"]]
        expected = {
            "shared": True,
            "fedsuite": False,
            # Ray reads its variables when it is imported.
            "ray": False,
            "address": None,
            "told": "worker",
            "folder": "/",
            "path": ["/its/own"],
        }
        assert facts == [expected, expected]
        # The simulation still waits.
        assert started_by_name(world, "x") == []
        assert wait_for_facts(world, 3)[-1]["words"] == ["x"]


@pytest.mark.parametrize("threads", [True, False])
def test_without_a_process_to_fork_a_worker_is_a_new_python(
    made: Path, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    # A fork would have the locks of other threads, and not the threads.
    lines = "import threading, time; threading.Thread(target=time.sleep, args=[60]).start()"
    (made / "path" / "threaded.py").write_text(lines if threads else "raise SystemExit")
    monkeypatch.setattr(early, "_LOADED", ("threaded",))
    with early_world() as world:
        world.tell({})
        if threads:
            started_by_name(world)
            wait_for_facts(world)
        else:
            world.simulation.process.wait(PATIENCE_S)
        (facts,) = worker(world, made / "made-program", "one")
        assert (facts["words"], facts["shared"]) == (["one"], False)


def test_what_nobody_asks_ends_with_its_world(made: Path) -> None:
    with early_world() as world:
        wait_for_socket(world, "workers")
        members = world.members()
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


@contextmanager
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note what happens to a world in place of beginning one."""
    seen: list[str] = []

    class Noted:
        def __enter__(self) -> None:
            seen.append("begun")

        def __exit__(self, *_: object) -> None:
            seen.append("ended")

    monkeypatch.setattr(early, "EarlyWorld", Noted)
    monkeypatch.setattr(early, "can_begin", lambda: True)
    yield seen


@pytest.mark.parametrize(
    ("values", "changes", "address", "begins"),
    [
        ({}, {}, "", False),
        ({"engine": "ray"}, {}, "", True),
        ({"engine": "ray"}, {"engine": "local"}, "", False),
        ({"engine": "auto"}, {"engine": "ray"}, "", True),
        ({"engine": "deployment"}, {}, "", False),
        ({"engine": "ray"}, {}, "10.0.0.1:6379", False),
        ({"engine": "ray", "ray-address": "local"}, {}, "10.0.0.1:6379", True),
        ({"engine": "ray", "ray-address": "10.0.0.1:6379"}, {}, "", False),
        ({"engine": "ray", "ray-address": "nonsense"}, {}, "", False),
    ],
)
def test_only_a_run_under_a_ray_of_its_own_begins(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    values: dict[str, str],
    changes: dict[str, str],
    address: str,
    begins: bool,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    file = tmp_path / "experiment.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in values.items()))
    with begun(monkeypatch) as seen:
        for given in (values, file):
            with begun_for(given, changes):
                seen.append("read")
    assert seen == (["begun", "read", "ended"] if begins else ["read"]) * 2


@pytest.mark.parametrize("text", ["no toml", b"\xff", None])
def test_what_cannot_be_read_begins_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | bytes | None
) -> None:
    file = tmp_path / "experiment.toml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with begun(monkeypatch) as seen, begun_for(file, {}):
        pass
    assert seen == []


def test_a_wrong_experiment_ends_what_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(monkeypatch) as seen, pytest.raises(ConfigError, match="no-such-key"):
        fedsuite.run({"engine": "ray", "method": "fedavg", "no-such-key": 1})
    assert seen == ["begun", "ended"]


def test_every_program_that_is_begun_is_there() -> None:
    pytest.importorskip("ray")
    assert early.can_begin()
    script = early.own_script(early._PROGRAM)
    assert os.access(script, os.X_OK)
    assert "python" in Path(script).read_text().splitlines()[0]
