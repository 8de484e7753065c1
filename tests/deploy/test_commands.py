"""``fedsuite deploy`` as typed: folders, errors, and what a rehearsal is given."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsuite.cli import app
from fedsuite.core.errors import ConfigError
from fedsuite.deploy import rehearsal
from fedsuite.deploy.commands import portable
from fedsuite.experiment.experiment import Experiment
from tests.small_runs import write_experiment

RUNNER = CliRunner()


def test_init_says_what_is_whose(tmp_path: Path) -> None:
    folder = tmp_path / "fed"
    words = ["--superlink", "fed.example.org, 192.0.2.7", "--nodes", "a, b"]
    result = RUNNER.invoke(app, ["deploy", "init", *words, "--output", str(folder)])
    assert result.exit_code == 0, result.output
    assert f"{folder}/nodes/b: for b alone" in result.output.replace("\n", "")
    assert (folder / "superlink" / "nodes" / "a.pub").exists()


@pytest.mark.parametrize("command", ["superlink", "supernode", "status"])
def test_a_folder_that_is_none(command: str, tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["deploy", command, str(tmp_path)])
    assert isinstance(result.exception, ConfigError)


def test_where_data_lies_is_each_machine_s_affair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSUITE_DATA", str(tmp_path))
    values = portable(Experiment.from_values({"model": "linear"}))
    assert values["data-dir"] == "auto"
    assert os.path.isabs(str(values["output-dir"]))
    assert values["run-name"] != "auto"
    assert values["engine"] == "deployment"


@pytest.mark.parametrize("kept", [True, False])
def test_a_rehearsal_keeps_client_states_for_a_resumed_run(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = []
    monkeypatch.setattr(rehearsal, "rehearse", lambda *words: given.append(words))
    file = tmp_path / "e.toml"
    write_experiment(file)
    words = ["--output", str(tmp_path / "fed")] if kept else []
    words = ["deploy", "local", str(file), "--nodes", "3", *words]
    assert RUNNER.invoke(app, words).exit_code == 0
    ((values, nodes, folder, _),) = given
    assert nodes == 3
    if kept:
        assert folder == tmp_path / "fed" and values["state-dir"] == "auto"
    else:
        assert not folder.exists()
        assert values["state-dir"] == str(tmp_path / "runs" / ".state")


def test_a_rehearsal_has_no_data_of_sites(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('model = "linear"\nsites = "a, b"\n')
    result = RUNNER.invoke(app, ["deploy", "local", str(tmp_path / "e.toml")])
    assert isinstance(result.exception, ConfigError), result.output
    assert "nodes that this command starts bring no data" in str(result.exception)
