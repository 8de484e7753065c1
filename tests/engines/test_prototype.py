"""The recipe of FedAL's prototype: its scripts, as real processes on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedsuite.engines.flower import fleet_is_grpc
from fedsuite.engines.processes import World

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy" / "fedal_prototype"
EXPERIMENT = """
method = "fedal"
num-clients = 2
client-models = "linear, mlp:hidden-width=16"
client-model-assignment = "listed"
public-size = 40
num-rounds = 2
transfer-steps = 1
local-steps = 2
run-name = "prototype"
device = "cpu"
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    scripts = Path(sys.executable).parent
    found = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    found |= {"PYTHONPATH": str(ROOT), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return found | more


@contextmanager
def started(words: list[str], folder: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a group of its own, and end the whole group afterwards."""
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(folder, **more),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=60)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_what_is_prepared(tmp_path: Path) -> None:
    prepare = [str(RECIPE / "prepare.sh"), "127.0.0.1", "3"]
    subprocess.run(prepare, cwd=tmp_path, env=environment(tmp_path), check=True)
    assert sorted(p.name for p in (tmp_path / "device-2").iterdir()) == [
        "ca.crt",
        "device.sh",
        "key",
        "key.pub",
        "partition",
    ]
    assert (tmp_path / "device-2" / "partition").read_text() == "2 3\n"
    keys = {(tmp_path / f"device-{k}" / "key.pub").read_text() for k in range(3)}
    assert len(keys) == 3
    assert (tmp_path / "device-0" / "key").stat().st_mode & 0o077 == 0
    again = subprocess.run(
        prepare, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert again.returncode == 2
    assert "use an empty folder" in again.stderr


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
@pytest.mark.skipif(fleet_is_grpc(), reason="the recipe is for Flower 1.40 and later")
def test_the_recipe_runs(tmp_path: Path) -> None:
    # A world's ports stay its own: another test might take one that is only free.
    with World("fedsuite") as world:
        follow_the_recipe(tmp_path, *(str(world.reserve_port()) for _ in range(3)))


def follow_the_recipe(tmp_path: Path, port: str, *runtime_ports: str) -> None:
    prepare = [str(RECIPE / "prepare.sh"), "127.0.0.1", "2"]
    subprocess.run(prepare, cwd=tmp_path, env=environment(tmp_path), check=True)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    server = [str(RECIPE / "server.sh"), "127.0.0.1", port, str(ROOT), "experiment.toml"]
    devices = [tmp_path / f"device-{k}" for k in range(2)]
    with started(server, tmp_path, BIND_ADDRESS="127.0.0.1", FEDSUITE_RUNS="runs") as run:
        # Server first, as the recipe has it: a device that finds none waits ever longer.
        deadline = time.monotonic() + 120
        while "devices may connect" not in (tmp_path / "log").read_text():
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        with (
            started(
                [str(devices[0] / "device.sh"), "127.0.0.1", port],
                devices[0],
                RUNTIME_PORT=runtime_ports[0],
            ),
            started(
                [str(devices[1] / "device.sh"), "127.0.0.1", port],
                devices[1],
                RUNTIME_PORT=runtime_ports[1],
            ),
        ):
            assert run.wait(timeout=300) == 0, (tmp_path / "log").read_text()[-3000:]
    (folder,) = tmp_path.rglob("runs/prototype")
    assert json.loads((folder / "manifest.json").read_text())["status"] == "finished"
    for k, device in enumerate(devices):
        assert [p.name for p in (device / "state" / "prototype").iterdir()] == [str(k)]
