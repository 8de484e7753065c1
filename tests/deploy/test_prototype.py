"""The recipe of FedAL's prototype: its scripts, as real processes on loopback."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedsuite.data import DATASETS
from fedsuite.engines.flower import fleet_is_grpc
from fedsuite.engines.processes import World
from tests.data import parquet_files

ROOT = Path(__file__).parents[2]
PREPARE = ROOT / "deploy" / "fedal_prototype" / "prepare.sh"
EXPERIMENT = """
method = "fedal"
num-clients = 2
client-models = "linear, mlp:hidden-width=16"
client-model-assignment = "listed"
public-dir = "auto"
num-rounds = 2
transfer-steps = 1
local-steps = 2
run-name = "prototype"
device = "cpu"
"""


def environment(**more: str) -> dict[str, str]:
    scripts = Path(sys.executable).parent
    found = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    found.pop("PYTHONPATH", None)
    return found | more


def prepare(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(PREPARE), *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def started(
    words: list[str], folder: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a group of its own, and end the whole group afterwards."""
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(**more),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=60)


def wait_for(text: str, folder: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while text not in (said := (folder / "log").read_text()):
        assert process.poll() is None and time.monotonic() < deadline, said[-3000:]
        time.sleep(0.2)


@pytest.mark.slow
def test_what_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.png").write_bytes(b"1")
    assert prepare(tmp_path, "127.0.0.1", "11", "images").returncode == 0
    nodes = tmp_path / "prototype" / "nodes"
    assert {node.name for node in nodes.iterdir()} == {f"device-{k}" for k in range(11)}
    for k in (0, 10):
        folder = nodes / f"device-{k}"
        assert {"device.sh", "key", "node.toml", "public"} <= set(os.listdir(folder))
        assert (folder / "public" / "one.png").read_bytes() == b"1"
        assert f"partition-id = {k}\n" in (folder / "node.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "usage: prepare.sh HOST"),
        (("127.0.0.1", "2", "nowhere"), "no folder nowhere"),
        (("127.0.0.1", "0"), "0 devices: expected 1 or more"),
        (("127.0.0.1", "ten"), "ten devices: expected 1 or more"),
        (("https://here", "2"), "without scheme"),
    ],
)
def test_what_prepare_refuses(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    refused = prepare(tmp_path, *words)
    assert refused.returncode != 0 and told in refused.stderr
    assert not list(tmp_path.iterdir())


def save_images(folder: Path) -> None:
    """Write images of the digits' size as a user's own public set."""
    spec = DATASETS["digits"]
    images = parquet_files.random_pixels(spec, 40)
    table = parquet_files.table(spec, images, [0] * len(images))
    parquet_files.write_split(folder, "own", table)


@pytest.mark.slow
@pytest.mark.skipif(fleet_is_grpc(), reason="SuperNodes of Flower 1.39 need another port")
def test_the_recipe_runs(tmp_path: Path) -> None:
    # A world's ports stay its own: another test might take one that is only free.
    with World("fedsuite") as world:
        follow_the_recipe(tmp_path, *(str(world.reserve_port()) for _ in range(3)))


def follow_the_recipe(tmp_path: Path, port: str, *runtime_ports: str) -> None:
    save_images(tmp_path / "images")
    assert prepare(tmp_path, "127.0.0.1", "2", "images").returncode == 0
    superlink = tmp_path / "prototype" / "superlink"
    # The recipe's port may be somebody's on the machine of a test.
    for file in (superlink / "superlink.toml", *tmp_path.rglob("node.toml")):
        file.write_text(re.sub("8000|8443", port, file.read_text()))
    if shutil.which("bwrap") is None:
        # What a device's operator is told to write then.
        for file in tmp_path.rglob("policy.toml"):
            file.write_text(file.read_text().replace('"bwrap"', '"landlock"'))
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    devices = [tmp_path / "prototype" / "nodes" / f"device-{k}" for k in range(2)]
    fedsuite = ["fedsuite", "deploy"]
    server = [*fedsuite, "superlink", str(superlink)]
    public = str(tmp_path / "images")
    with started(server, tmp_path, FEDSUITE_PUBLIC=public) as link:
        # Server first: a device that finds none waits ever longer.
        wait_for("2 nodes may join", tmp_path, link)
        starts = [
            started(
                [str(device / "device.sh"), "--runtime-port", port],
                device,
                FEDSUITE_PUBLIC="",
            )
            for device, port in zip(devices, runtime_ports, strict=True)
        ]
        with starts[0], starts[1]:
            run = subprocess.run(
                [*fedsuite, "run", str(superlink), "experiment.toml"],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    folder = superlink / "runs" / "prototype"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    for k, device in enumerate(devices):
        assert [p.name for p in (device / "state" / "prototype").iterdir()] == [str(k)]
