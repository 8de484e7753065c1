"""Every command and program in the README and in docs/ runs as it stands there."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import blocks, written_pages

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
OWN_TESTS = ("plug_ins.md",)
"""Pages whose commands need more than a clone: tests/plug_ins runs them."""
PAGES = [
    README,
    *(page.read_text() for page in written_pages() if page.name not in OWN_TESTS),
]
COMMANDS = [
    line
    for kind, text in blocks("\n".join(PAGES))
    if kind == "console"
    for line in text.splitlines()
]
SLOW = (
    "fedsuite leaderboard",
    "--engine ray",
    "--engine deployment",
    "flwr run",
    "deploy local",
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what a newcomer's clone holds."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("fedsuite", "simulations"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def environment(**extra: str) -> dict[str, str]:
    # The commands by their names, as in an activated environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **extra}


def run(command: str, folder: Path, **extra: str) -> str:
    done = subprocess.run(
        command.replace("fedsuite ", f"{sys.executable} -m fedsuite ", 1)
        if command.startswith("fedsuite ")
        else command,
        shell=True,
        cwd=folder,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def test_readme_has_commands() -> None:
    assert len(COMMANDS) > 10
    assert all(command.startswith(("fedsuite ", "flwr ")) for command in COMMANDS)
    assert "make simulate" in README and "make test" in README


def test_readme_is_read_in_one_go() -> None:
    lines = README.splitlines()
    assert len(lines) <= 130
    assert not [line for line in lines if len(line) > 100]


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"simulate", "test", "test-all", "setup", "config"} <= set(targets)


@pytest.mark.smoke
@pytest.mark.slow
def test_local_commands_run_in_order(checkout: Path) -> None:
    for command in COMMANDS:
        if not any(mark in command for mark in SLOW):
            output = run(command, checkout)
            if command.startswith("fedsuite compare"):
                # Like with like: one key differs, and the runs are a pair.
                assert "warning:" not in output
                assert "pair by pair" in output
    assert (checkout / "runs" / "first" / "model.safetensors").exists()
    assert (checkout / "comparison").is_dir()
    assert (checkout / "partition" / "partition_train.png").exists()


@pytest.mark.slow
def test_engine_commands_run(checkout: Path) -> None:
    marks = ("--engine", "deploy local")
    engines = [command for command in COMMANDS if any(mark in command for mark in marks)]
    assert len(engines) == 3
    for command in engines:
        assert "run folder:" in run(command, checkout)


@pytest.fixture
def flower_home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give Flower a home and a port of its own, and stop the SuperLink that it starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    marker = str(tmp_path / "flwr-home")
    yield {
        "FLWR_HOME": marker,
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FEDSUITE_RUNS": str(tmp_path / "runs"),
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"FLWR_HOME={marker}".encode() in (process / "environ").read_bytes()
        except OSError:
            continue
        if mine and int(process.name) != os.getpid():
            os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="stops Flower by /proc")
def test_flowers_own_command_runs(
    checkout: Path, flower_home: dict[str, str], tmp_path: Path
) -> None:
    command = next(command for command in COMMANDS if command.startswith("flwr run"))
    run(command, checkout, **flower_home)
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 1
    assert (folders[0] / "model.safetensors").exists()


@pytest.mark.smoke
@pytest.mark.slow
def test_python_programs(checkout: Path) -> None:
    programs = [text for kind, text in blocks(README) if kind == "python"]
    assert len(programs) == 2
    script = checkout / "program.py"
    script.write_text(programs[0])
    run(f"{sys.executable} program.py", checkout)
    # The second is a ServerApp of somebody's: it must import and make its strategy.
    script.write_text(programs[1].replace("build_model()", "None and build_model()"))
    run(f"{sys.executable} program.py", checkout)
