"""A run that is killed and resumed ends with the bits of one that never stopped."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedsuite.messages.versions import exchange_of
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
    "report": "false",
}
KILLS = int(os.environ.get("FEDSUITE_KILLS", "3"))

Outcome = tuple[bytes | None, list[str], dict[str, bytes]]
"""The model if any, the rounds without their times, and the clients' states."""


def command(method: str, output: Path, name: str) -> list[str]:
    settings = {**SETTINGS, "method": method, "output-dir": str(output), "run-name": name}
    if method == "standalone":
        # It trains every client in each round.
        del settings["clients-per-round"]
    options = [f"--set={key}={value}" for key, value in settings.items()]
    experiment = Path(__file__).parents[2] / "simulations" / "quickstart.toml"
    return [sys.executable, "-m", "fedsuite", "run", str(experiment), *options]


def outcome(folder: Path) -> Outcome:
    """Return what a run left."""
    rows = (folder / "rounds.jsonl").read_text().splitlines()
    timeless = [row.split('"seconds"')[0] for row in rows]
    states = {
        # Whatever attempt made it.
        f"{path.parent.name}/{exchange_of(path.stem)}": path.read_bytes()
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


def cases() -> Iterator[Any]:
    """Yield each method with the number of each kill; the first of FedDC is smoke."""
    for method in ("feddc", "fedavg", "standalone"):
        for kill in range(KILLS):
            smoke = (method, kill) == ("feddc", 0)
            yield pytest.param(method, kill, marks=[pytest.mark.smoke] if smoke else [])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Return a function that gives what a whole run of a method left."""

    @cache
    def made(method: str) -> Outcome:
        folder = tmp_path_factory.mktemp(method)
        subprocess.run(
            command(method, folder, "whole"), check=True, stdout=subprocess.DEVNULL
        )
        return outcome(folder / "whole")

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kill"), list(cases()))
def test_killed_and_resumed_equals_uninterrupted(
    method: str, kill: int, whole: Callable[[str], Outcome], tmp_path: Path
) -> None:
    expected = whole(method)
    assert len(expected[1]) == ROUNDS
    assert (expected[0] is None) == (method == "standalone")
    assert bool(expected[2]) == (method != "fedavg")
    run_and_kill(method, tmp_path, "killed", random.Random(f"{method} {kill}"))
    found = outcome(tmp_path / "killed")
    assert found[0] == expected[0], "the model differs"
    assert found[1] == expected[1], "the rounds differ"
    assert found[2] == expected[2], "the clients' states differ"
