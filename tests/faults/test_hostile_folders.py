"""Folders of runs from others: every command that reads one ends in order.

A command may work, or say in one line what is wrong. It ends by no other error, waits for
nothing, writes nowhere but where it was told, and sends a terminal no control characters.
``FEDSUITE_FAULTS=all`` tries 500 folders with every command, otherwise a sample.
"""

import contextlib
import hashlib
import io
import os
import shutil
import signal
import socket
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import fedsuite
from fedsuite.cli import main
from fedsuite.core.reading import read_bytes
from fedsuite.deploy.status import read_runs
from tests.faults.hostile_folders import wounded
from tests.faults.runs import ALL

CASES = 500
SAMPLE = 12
PATIENCE_S = 600

_COMMON: Mapping[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "num-clients": 3,
    "num-rounds": 2,
    "local-steps": 2,
    "batch-size": 32,
    "checkpoint-every": 1,
    "workers": 1,
    "device": "cpu",
    "report": False,
}
BASES: tuple[Mapping[str, Any], ...] = (
    {**_COMMON, "method": "scaffold", "best-model-metric": "accuracy_mean"},
    {**_COMMON, "method": "fedavg", "dp-noise-multiplier": 1.0, "dp-clipping-norm": 1.0},
    {
        **_COMMON,
        "method": "fedmd",
        "client-models": "linear, mlp:hidden-width=8",
        "client-model-assignment": "round-robin",
        "public-size": 32,
    },
    {**_COMMON, "method": "standalone"},
)
"""The last is the one that others are compared with."""

MOST_WORK = 1e4
"""A run with a larger number among its keys may take its time."""


def commands(run: Path, whole: Path, alone: Path, output: Path) -> Iterator[list[str]]:
    """Yield every command that reads a run's folder."""
    both = [str(run), str(whole)]
    to = ["--output", str(output)]
    yield ["compare", *both, *to, "--figure", str(output / "curves.svg")]
    yield ["report", str(run), "--output", str(output / "one.html")]
    yield ["report", *both, "--output", str(output / "two.html")]
    yield ["fairness", str(run), "--standalone", str(alone), *to]
    yield ["analyse", "costs", *both, *to]
    yield ["analyse", "suspects", str(run), *to]
    model = str(output / "model.safetensors")
    yield ["export", str(run), "--format", "safetensors", "--output", model]
    if _quick(run):
        yield ["resume", str(run), "--num-rounds", "3"]


def _quick(run: Path) -> bool:
    try:
        values = tomllib.loads(read_bytes(run / "experiment.toml", 2**20).decode())
        numbers = [float(v) for v in values.values() if isinstance(v, int | float)]
    except (OSError, ValueError, RecursionError, OverflowError):
        return True
    # What a state-dir names is written to, as an output-dir is.
    here = values.get("state-dir", "auto") == "auto"
    return here and all(abs(number) <= MOST_WORK for number in numbers)


class Waits(BaseException):
    """A command that does not end."""


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Raise if the block takes far longer than any command needs."""

    def stop(*_: object) -> None:
        raise Waits

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def called(arguments: list[str]) -> tuple[str, str]:
    """Return what a command prints on standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["fedsuite", *arguments]
    try:
        with patience(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        assert end.code in (0, 1, None), f"exit code {end.code}: {err.getvalue()}"
    finally:
        sys.argv = argv
    return out.getvalue(), err.getvalue()


def contents(folder: Path) -> dict[str, str]:
    """Return what each path in a folder is: a hash of a file, a link's target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        content = ""
        if kind == stat.S_IFREG:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        found[str(path.relative_to(folder))] = f"{kind} {content}"
    return found


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return one folder of each kind of run."""
    output = tmp_path_factory.mktemp("whole")
    with contextlib.redirect_stdout(io.StringIO()):
        for number, keys in enumerate(BASES):
            fedsuite.run({**keys, "output-dir": str(output), "run-name": f"run{number}"})
    return sorted(output.glob("run*"))


@pytest.fixture(autouse=True)
def short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a socket be bound by a path that is longer than its address may be."""
    bind = socket.socket.bind

    def bound(self: socket.socket, address: str) -> None:
        here = os.getcwd()
        os.chdir(Path(address).parent)
        try:
            bind(self, Path(address).name)
        finally:
            os.chdir(here)
            self.close()

    monkeypatch.setattr(socket.socket, "bind", bound)


@pytest.mark.parametrize("number", range(CASES if ALL else SAMPLE))
def test_a_command_ends_in_order(
    number: int,
    whole_runs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    survived: Callable[[], None],
) -> None:
    *others, alone = whole_runs
    whole = others[number % len(others)]
    outside, made = tmp_path / "outside", tmp_path / "made"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text("{}\n")
    made.mkdir()
    done = wounded(whole, made / "run", outside, number)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    untouched = contents(outside), contents(whole), {}
    print(number, done)
    for place, arguments in enumerate(
        commands(made / "run", whole, alone, tmp_path / "output")
    ):
        if not ALL and place % 3 != number % 3:
            continue
        print(" ".join(arguments[:2]))
        out, err = called(arguments)
        printed = out + err
        assert all(c.isprintable() or c == "\n" for c in printed), printed
        assert "Traceback" not in printed
        errors = [line for line in err.splitlines() if line.startswith("fedsuite: error")]
        assert len(errors) <= 1
    with patience():
        read_runs(made)
    here = contents(tmp_path / "here")
    assert (contents(outside), contents(whole), here) == untouched
    # Five hundred of them would fill a disk.
    shutil.rmtree(tmp_path)
    survived()
