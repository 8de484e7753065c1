"""A run that is killed and resumed ends with the bits of one that never stopped."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsuite.results.layout import MANIFEST, MODEL, read_manifest

ROUNDS = 40
SETTINGS = {
    "num-rounds": str(ROUNDS),
    "num-clients": "6",
    "partitioner": "shards",
    "clients-per-round": "4",
    "checkpoint-every": "3",
    "local-epochs": "1",
    "early-stop-metric": "accuracy_mean",
    "early-stop-patience": str(ROUNDS),
}
KILLS = int(os.environ.get("FEDSUITE_KILLS", "3"))


def command(method: str, output: Path, name: str) -> list[str]:
    settings = {**SETTINGS, "method": method, "output-dir": str(output), "run-name": name}
    options = [f"--set={key}={value}" for key, value in settings.items()]
    experiment = Path(__file__).parents[2] / "simulations" / "quickstart.toml"
    return [sys.executable, "-m", "fedsuite", "run", str(experiment), *options]


def outcome(folder: Path) -> tuple[bytes | None, list[str], dict[str, bytes]]:
    """Return what a run left: model if any, rounds without times, and clients' states."""
    rows = (folder / "rounds.jsonl").read_text().splitlines()
    timeless = [row.split('"seconds"')[0] for row in rows]
    states = {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted((folder / "state").glob("*/*.safetensors"))
    }
    model = folder / MODEL
    return model.read_bytes() if model.exists() else None, timeless, states


def run_and_kill(method: str, output: Path, name: str, chance: random.Random) -> None:
    """Start a run, kill it at a random moment, and resume it until it is finished."""
    folder = output / name
    process = subprocess.Popen(
        command(method, output, name), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    wanted = chance.randrange(ROUNDS)
    rounds = folder / "rounds.jsonl"
    while process.poll() is None:
        lines = rounds.read_bytes().count(b"\n") if rounds.exists() else 0
        if lines >= wanted:
            # A moment anywhere inside the round, its checkpoint included.
            time.sleep(chance.random() * 0.05)
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not (folder / MANIFEST).exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(command(method, output, name), check=True, stdout=subprocess.DEVNULL)
    elif read_manifest(folder)["status"] != "finished":
        resume = [sys.executable, "-m", "fedsuite", "resume", str(folder)]
        subprocess.run(resume, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg", "standalone", pytest.param("feddc", marks=pytest.mark.smoke)]
)
def test_killed_and_resumed_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    subprocess.run(
        command(method, tmp_path, "whole"), check=True, stdout=subprocess.DEVNULL
    )
    expected = outcome(tmp_path / "whole")
    assert len(expected[1]) == ROUNDS
    assert (expected[0] is None) == (method == "standalone")
    assert bool(expected[2]) == (method != "fedavg")
    chance = random.Random(method)
    for kill in range(KILLS):
        run_and_kill(method, tmp_path, f"kill-{kill}", chance)
        found = outcome(tmp_path / f"kill-{kill}")
        assert found[0] == expected[0], f"kill {kill}: the model differs"
        assert found[1] == expected[1], f"kill {kill}: the rounds differ"
        assert found[2] == expected[2], f"kill {kill}: the clients' states differ"
