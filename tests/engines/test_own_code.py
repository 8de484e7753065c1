"""Code of one's own: all engines find what this process finds, or say at once why not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.engines.processes import World
from fedsuite.engines.staging import check_code
from fedsuite.results.reader import load_run
from tests.small_runs import SMALL, final_model, write_experiment

NET = """
from torch import nn
def net(input_shape, num_classes):
    rows = 1
    for size in input_shape:
        rows *= size
    return nn.Sequential(nn.Flatten(), nn.Linear(rows, num_classes))
"""


def own(tmp_path: Path, folder: str) -> Path:
    """Make a project whose own network lies in a folder; return the project."""
    project = tmp_path / "project"
    (project / folder).mkdir(parents=True)
    (project / folder / "own_nets.py").write_text(NET)
    write_experiment(project / "own.toml", model="own_nets:net")
    return project


def run(project: Path, name: str, *words: str, path: str | None) -> Path:
    """Run the experiment as typed in the project's folder; return the run's folder."""
    values = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    values |= {} if path is None else {"PYTHONPATH": path}
    command = [sys.executable, "-m", "fedsuite", "run", "own.toml", *words]
    subprocess.run(
        [*command, "--set", f"run-name={name}"],
        cwd=project,
        env=values,
        check=True,
        capture_output=True,
    )
    return project / "runs" / name


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "path"), [("code", "code"), (".", None)])
def test_workers_find_what_one_process_finds(
    folder: str, path: str | None, tmp_path: Path
) -> None:
    project = own(tmp_path, folder)
    alone = final_model(run(project, "alone", path=path))
    assert final_model(run(project, "two", "--set", "workers=2", path=path)) == alone


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "path"), [("code", "code"), (".", None)])
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_other_engines_find_it_too(
    engine: str, folder: str, path: str | None, tmp_path: Path
) -> None:
    project = own(tmp_path, folder)
    alone = final_model(run(project, "alone", path=path))
    other = run(project, "other", "--engine", engine, path=path)
    assert final_model(other) == alone
    assert load_run(other).manifest["engine"] == engine


@pytest.mark.slow
def test_a_sweep_and_a_rehearsed_federation_find_it_too(tmp_path: Path) -> None:
    project = own(tmp_path, "code")
    values = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    for words in (
        ["sweep", "own.toml", "--grid", "learning-rate=0.1,0.2", "--output", "swept"],
        ["deploy", "local", "own.toml", "--set", "run-name=deployed"],
    ):
        subprocess.run(
            [sys.executable, "-m", "fedsuite", *words],
            cwd=project,
            env=values | {"PYTHONPATH": "code"},
            check=True,
            capture_output=True,
        )
    assert load_run(project / "runs" / "deployed").manifest["status"] == "finished"


@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_what_is_not_there_is_said_at_once(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(world: World, package: str = "") -> None:
        pytest.fail("something began")

    monkeypatch.setattr(World, "__init__", begin)
    values = {**SMALL, "output-dir": str(tmp_path / "runs"), "engine": engine}
    with pytest.raises(ConfigError, match="there is no module 'nowhere' here"):
        fedsuite.run({**values, "model": "nowhere:Net"})
    with pytest.raises(ConfigError, match="is of this program or notebook"):
        fedsuite.run({**values, "model": "__main__:Net"})
    assert list(tmp_path.iterdir()) == []


def test_code_that_lies_beside_another_fedsuite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_nets.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_code({"model": "beside_nets:net"})
    (tmp_path / "fedsuite").mkdir()
    with pytest.raises(ConfigError, match=f"beside_nets lies in {tmp_path} beside"):
        check_code({"model": "beside_nets:net"})
    # What is installed is found by every process.
    check_code({"model": "torch:nn"})
