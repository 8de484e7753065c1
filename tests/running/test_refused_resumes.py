"""A resume that would lose or mix something is refused in one line, and nothing changes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.core.files import safetensors_arrays, safetensors_bytes
from fedsuite.experiment import plug_ins
from fedsuite.results.layout import read_manifest
from fedsuite.results.reader import load_run
from fedsuite.results.writer import CHECKPOINTS, LOCK, RunFolder

SMALL: dict[str, Any] = {
    "model": "linear",
    "method": "scaffold",
    "num-clients": 3,
    "num-rounds": 2,
    "local-steps": 1,
    "checkpoint-every": 1,
    "workers": 1,
    "report": False,
}


def run(output: Path, **changes: Any) -> Path:
    keys = {name.replace("_", "-"): value for name, value in changes.items()}
    values = SMALL | {"output-dir": str(output), "run-name": "run"} | keys
    return fedsuite.run(values).path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(folder: Path) -> dict[Path, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != LOCK)
    return {path.relative_to(folder): path.read_bytes() for path in files}


def refused(folder: Path, message: str) -> None:
    before = contents(folder)
    with pytest.raises(RunError, match=message) as caught:
        fedsuite.resume(folder, num_rounds=3)
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_a_whole_folder_goes_on(folder: Path) -> None:
    assert len(fedsuite.resume(folder, num_rounds=3).rounds) == 3


@pytest.mark.parametrize("place", [CHECKPOINTS, "state", "state/0", "rounds.jsonl", LOCK])
def test_it_writes_through_no_link(place: str, folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder / place, elsewhere)
    (folder / place).symlink_to(elsewhere)
    before = contents(tmp_path)
    refused(folder, f"{place}.* is a link")
    assert contents(tmp_path) == before


def without(arrays: dict[str, Any], name: str) -> None:
    del arrays[name]


def wider(arrays: dict[str, Any], name: str) -> None:
    arrays[name] = np.zeros((*arrays[name].shape, 2), np.float32)


def double(arrays: dict[str, Any], name: str) -> None:
    arrays[name] = arrays[name].astype(np.float64)


def more(arrays: dict[str, Any], name: str) -> None:
    arrays[f"{name}.more"] = arrays[name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without, "lacks"),
        (wider, "is float32"),
        (double, "is float64"),
        (more, "has .*more"),
    ],
)
def test_a_checkpoint_is_of_the_runs_model(
    change: Callable[[dict[str, Any], str], None], words: str, folder: Path
) -> None:
    path = max((folder / CHECKPOINTS).iterdir())
    tensors, note = safetensors_arrays(path.read_bytes())
    facts = json.loads(note)
    change(tensors, f"arrays/{facts['arrays'][0]}")
    names = [name for name in tensors if name.startswith("arrays/")]
    facts["arrays"] = [name.removeprefix("arrays/") for name in names]
    path.write_bytes(safetensors_bytes(tensors, json.dumps(facts)))
    refused(folder, f"of another model, for .*{words}")


@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_rounds_without_their_checkpoints_stay(status: str, folder: Path) -> None:
    shutil.rmtree(folder / CHECKPOINTS)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"status": status}))
    refused(folder, "has 2 rounds and no checkpoint to go on from")


def test_a_run_that_writes_no_checkpoint_begins_anew(tmp_path: Path) -> None:
    path = run(tmp_path, checkpoint_every=0)
    refused(path, "has 2 rounds and no checkpoint")
    RunFolder(path).finish("stopped")
    assert [row["round"] for row in fedsuite.resume(path).rounds] == [1, 2]


NET = """
from torch import nn


def net(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))
"""


def test_a_network_of_ones_own_is_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets_of_a_resume.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    path = run(tmp_path, model="nets_of_a_resume:net", method="fedavg")
    assert "nets_of_a_resume:net" in read_manifest(path)["own_code"]
    (tmp_path / "nets_of_a_resume.py").write_text(NET.replace("Flatten(),", "Flatten(1),"))
    # Each process looks at the files once.
    plug_ins._digest.cache_clear()
    refused(path, "began with other code of yours")
    (tmp_path / "nets_of_a_resume.py").write_text(NET)
    plug_ins._digest.cache_clear()
    fedsuite.resume(path, num_rounds=3)
    assert len(load_run(path).rounds) == 3
