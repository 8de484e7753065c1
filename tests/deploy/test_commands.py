"""``fedsuite deploy`` as typed: folders, errors, and what a rehearsal is given."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsuite.cli import app
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy import rehearsal
from fedsuite.deploy.commands import portable
from fedsuite.deploy.endings import run_folder
from fedsuite.deploy.folders import init_federation
from fedsuite.engines.api import resume
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.layout import FEDERATION_VARIABLE
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
    reported = []
    monkeypatch.setattr(
        "fedsuite.engines.api.write_report_if_wanted", lambda *words: reported.append(words)
    )
    file = tmp_path / "e.toml"
    write_experiment(file)
    words = ["--output", str(tmp_path / "fed")] if kept else []
    words = ["deploy", "local", str(file), "--nodes", "3", *words]
    assert RUNNER.invoke(app, words).exit_code == 0
    ((values, nodes, folder, _),) = given
    assert nodes == 3
    ((wanted, (run,), place),) = reported
    assert wanted["report"] is values["report"]
    assert run == place == tmp_path / "runs" / str(values["run-name"])
    if kept:
        assert folder == tmp_path / "fed" and values["state-dir"] == "auto"
    else:
        assert folder is None
        assert values["state-dir"] == str(tmp_path / "runs" / ".state")


def test_a_rehearsal_has_no_data_of_sites(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('model = "linear"\nsites = "a, b"\n')
    result = RUNNER.invoke(app, ["deploy", "local", str(tmp_path / "e.toml")])
    assert isinstance(result.exception, ConfigError), result.output
    assert "nodes that this command starts bring no data" in str(result.exception)


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the folder of a run that a federation began, and the federation's."""
    superlink = tmp_path / "fed" / "superlink"
    init_federation(tmp_path / "fed", ["fed.example.org"], ["a"])
    monkeypatch.setenv(FEDERATION_VARIABLE, str(superlink))
    write_experiment(tmp_path / "e.toml")
    words = ["--set", "run-name=run", "--set", f"output-dir={tmp_path / 'runs'}"]
    result = RUNNER.invoke(app, ["run", str(tmp_path / "e.toml"), *words])
    assert result.exit_code == 0, result.output
    return tmp_path / "runs" / "run", superlink


def test_a_run_goes_on_at_its_federation(
    deployed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, superlink = deployed
    given = []
    monkeypatch.setattr(rehearsal, "submit", lambda *words: given.append(words))
    result = RUNNER.invoke(app, ["resume", str(run), "--num-rounds", "9"])
    assert result.exit_code == 0, result.output
    ((folder, values, _, _),) = given
    assert folder.path == superlink
    assert (values["resume"], values["num-rounds"]) == (True, 9)
    assert values["engine"] == "deployment"
    with pytest.raises(RunError, match="is a run of the federation"):
        resume(run, num_rounds=9)


def test_a_run_whose_federation_is_gone(deployed: tuple[Path, Path]) -> None:
    run, superlink = deployed
    superlink.rename(superlink.with_name("away"))
    result = RUNNER.invoke(app, ["resume", str(run), "--num-rounds", "9"])
    assert isinstance(result.exception, RunError)
    assert "is not on this machine: go on at another one by" in str(result.exception)
    # Who names an engine says where.
    assert resume(run, engine="local", num_rounds=9).rounds[-1]["round"] == 9


def test_results_lie_where_the_status_looks(
    deployed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(rehearsal, "submit", lambda *words: given.append(words))
    words = ["deploy", "run", str(deployed[1]), str(tmp_path / "e.toml")]
    assert RUNNER.invoke(app, words).exit_code == 0
    ((folder, values, _, _),) = given
    assert values["output-dir"] == "auto"
    assert run_folder(values, folder).parent == folder.path / "runs"
