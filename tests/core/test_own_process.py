"""Processes that work in another folder find what this one finds."""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedsuite.core.own_process import anywhere, typed, with_fedsuite

TOLD = (
    "import json, os; from fedsuite.core.own_process import anywhere; "
    "print(json.dumps(anywhere(os.environ)['PYTHONPATH'].split(os.pathsep)))"
)


def folders_told(words: Sequence[str], folder: Path, **environment: str) -> list[str]:
    """Return what a Python that is started so hands to its processes."""
    values = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | environment
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=values,
        capture_output=True,
        text=True,
        check=True,
    )
    told: list[str] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    ("entries", "folders"),
    [
        (["code"], ["code"]),
        ([".", "code"], [".", "code"]),
        (["code", ""], ["code", "."]),
        (["../other", "code"], ["../other", "code"]),
    ],
)
def test_relative_entries_of_the_path(
    entries: list[str], folders: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "scripts" / "told.py"
    script.parent.mkdir()
    script.write_text(TOLD)
    working = tmp_path / "project"
    (working / "code").mkdir(parents=True)
    told = folders_told([str(script)], working, PYTHONPATH=os.pathsep.join(entries))
    expected = [os.path.abspath(working / folder) for folder in folders]
    # A script's own folder comes first, as in the script's process.
    assert told == [str(script.parent), *expected]


def test_the_current_folder_of_a_module_and_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    assert folders_told(["-m", "told"], tmp_path) == [str(tmp_path)]
    assert folders_told(["-c", TOLD], tmp_path) == [str(tmp_path)]


def test_a_notebook_s_own_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "src"])
    assert str(tmp_path / "src") in anywhere({})["PYTHONPATH"].split(os.pathsep)
    # A variable that was set since this process began.
    told = anywhere({"PYTHONPATH": "code"})["PYTHONPATH"].split(os.pathsep)
    assert str(tmp_path / "code") in told and "code" not in told


def test_what_every_python_has_is_not_told_again() -> None:
    told = folders_told(
        ["-P", "-c", TOLD.replace("['PYTHONPATH']", ".get('PYTHONPATH', '')")], Path("/")
    )
    assert told == [""]
    packages = sysconfig.get_path("purelib")
    assert packages not in with_fedsuite({})["PYTHONPATH"].split(os.pathsep)


def test_variables_with_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "FEDSUITE_DATA": "data",
        "FEDSUITE_STATE": "~/state",
        "FEDSUITE_PUBLIC": "",
        "HF_HOME": "/hub",
        "MLFLOW_TRACKING_URI": "sqlite:///runs/mlflow.db",
        "OTHER": "data",
    }
    rooted = anywhere(given)
    rooted.pop("PYTHONPATH", None)
    assert rooted == {
        **given,
        "FEDSUITE_DATA": str(tmp_path / "data"),
        "FEDSUITE_STATE": os.path.expanduser("~/state"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/runs/mlflow.db",
    }
    for address in ("https://example.org/mlflow", "databricks", "sqlite:////srv/a.db"):
        told = anywhere({"MLFLOW_TRACKING_URI": address})["MLFLOW_TRACKING_URI"]
        assert told == address


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/venv/bin/fedsuite sweep 'a b.toml'", "fedsuite sweep 'a b.toml'"),
        ("/clone/fedsuite/__main__.py tune a.toml", "fedsuite tune a.toml"),
        ("/clone/simulations/board/__main__.py a", "python -m simulations.board a"),
    ],
)
def test_the_command_is_said_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    monkeypatch.setattr(sys, "orig_argv", ["/venv/bin/python", *said.split()[1:]])
    assert typed() == said
