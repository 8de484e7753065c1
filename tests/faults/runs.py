"""Small runs that are disturbed, taken up again, and compared with whole ones."""

import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.messages.versions import exchange_of, is_version
from fedsuite.results.layout import MANIFEST, MODEL, read_manifest
from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints

_COMMON: Mapping[str, Value] = {
    "dataset": "digits",
    "model": "linear",
    "num-clients": 3,
    "num-rounds": 3,
    "local-steps": 2,
    "batch-size": 32,
    "checkpoint-every": 1,
    "device": "cpu",
    "report": False,
}
ALL = os.environ.get("FEDSUITE_FAULTS") == "all"
"""Whether every fault is tried, not only a sample: ``make faults``."""

_EXPERIMENTS: Mapping[str, Mapping[str, Value]] = {
    "fedeba-plus": {**_COMMON, "method": "fedeba-plus", "server-momentum": 0.5},
    "fedal": {
        **_COMMON,
        "method": "fedal",
        "client-models": "linear, mlp:hidden-width=8, mlp:hidden-width=8:hidden-layers=1",
        "client-model-assignment": "round-robin",
        "public-size": 64,
        "transfer-steps": 2,
    },
    "fedakd": {**_COMMON, "method": "fedakd", "clients-per-round": 2},
    "fedbuff": {
        **_COMMON,
        "method": "fedbuff",
        "fedbuff-share": 0.67,
        "server-optimizer": "yogi",
    },
    "fedala": {**_COMMON, "method": "fedala", "clients-per-round": 2},
    "fedbabu": {
        **_COMMON,
        "method": "fedbabu",
        "model": "mlp",
        "hidden-width": 8,
        "clients-per-round": 2,
    },
    "fedem": {**_COMMON, "method": "fedem", "clients-per-round": 2},
    "fml": {**_COMMON, "method": "fml", "clients-per-round": 2},
    "ifca": {**_COMMON, "method": "ifca", "clients-per-round": 2},
    "lp-proj": {**_COMMON, "method": "lp-proj", "lp-proj-inner-steps": 1},
    "pfedck": {
        **_COMMON,
        "method": "pfedck",
        "pfedck-clusters": 2,
        "pfedck-feature-weight": 0.0,
        "clients-per-round": 2,
    },
    "personal-atoms": {
        **_COMMON,
        "method": "fedavg",
        "model": "cnn-shallow",
        "decomposition": True,
        "coefficient-period": 2,
        "personal-atoms": True,
    },
    "scaffold": {**_COMMON, "method": "scaffold", "clients-per-round": 2},
}
_SAMPLE = ("fedeba-plus", "fedal", "fedakd", "personal-atoms", "scaffold")

EXPERIMENTS = {name: _EXPERIMENTS[name] for name in (_EXPERIMENTS if ALL else _SAMPLE)}
"""One small run of each kind of state: on the server, at the clients, in both."""

KILLED = 77
"""Exit code of a process that a fault ended."""

PATIENCE_S = 120
"""After so many seconds a forked process is ended."""


def sample(name: str, total: int) -> list[int]:
    """Return the faults to try of 1 to ``total``: first ones, middle and last, or all.

    What comes first, before any training, is alike in all runs: one of them tries it.
    """
    if ALL:
        return list(range(1, total + 1))
    first = {1, 2} if name == _SAMPLE[0] else set()
    return sorted({*first, total // 2, total} & set(range(1, total + 1)))


def in_child(work: Callable[[], object], patience_s: int = PATIENCE_S) -> int:
    """Do some work in a forked process and return its exit code.

    Everything that this process has imported and loaded is there already.
    """
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.alarm(patience_s)
            work()
            code = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def start(name: str, output: Path, run_name: str, **changes: Value) -> None:
    """Start one of the runs."""
    places = {"output-dir": str(output), "run-name": run_name, **changes}
    fedsuite.run(EXPERIMENTS[name], overrides=places)


def go_on(name: str, folder: Path) -> None:
    """Take a run up as a person would: resume it, or start it if it had not begun."""
    if not (folder / MANIFEST).exists():
        start(name, folder.parent, folder.name)
    elif read_manifest(folder)["status"] != "finished":
        fedsuite.resume(folder)


@dataclass(frozen=True)
class Outcome:
    """All that a run left, but times and attempts."""

    model: bytes | None
    checkpoint: dict[str, Any]
    states: Mapping[str, bytes]
    clients: bytes
    events: bytes
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]


def outcome(folder: Path) -> Outcome:
    """Read what a finished run left."""
    assert read_manifest(folder)["status"] == "finished"
    return Outcome(
        model=_bytes(folder / MODEL) or None,
        checkpoint=_last_checkpoint(folder),
        states={
            f"{path.parent.name}/{exchange_of(path.stem)}": path.read_bytes()
            for path in sorted((folder / "state").glob("*/*"))
        },
        clients=_bytes(folder / "clients.jsonl"),
        events=_bytes(folder / "events.jsonl"),
        rounds=[
            _timeless(json.loads(line))
            for line in _bytes(folder / "rounds.jsonl").splitlines()
        ],
        summary=_timeless(json.loads(_bytes(folder / "summary.json"))),
    )


def assert_same(folder: Path, whole: Outcome, fault: object) -> None:
    """Compare what a disturbed run left with what a whole one did, bit for bit."""
    found = outcome(folder)
    for part in vars(whole):
        assert getattr(found, part) == getattr(whole, part), f"{fault}: {part} differs"
    leftovers = [path.name for path in folder.rglob(".*.tmp")]
    assert not leftovers, f"{fault}: {leftovers} were left"


def _last_checkpoint(folder: Path) -> dict[str, Any]:
    """Return what the last checkpoint holds; a run may write none."""
    paths = list_checkpoints(folder / CHECKPOINTS)
    return _plain(vars(Checkpoint.load(paths[-1]))) if paths else {}


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _plain(value: Any) -> Any:
    """Return a checkpoint's part in a form to compare: arrays as bytes, no attempts."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    is_name = isinstance(value, str) and is_version(value)
    return exchange_of(value) if is_name else repr(value)


def _timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if "seconds" not in key}
    return {k: _timeless(v) if isinstance(v, dict) else v for k, v in kept.items()}
