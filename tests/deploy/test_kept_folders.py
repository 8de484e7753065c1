"""The folder of a rehearsed federation: kept after a round, and never in the way."""

from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy import rehearsal
from fedsuite.deploy.folders import init_federation
from fedsuite.deploy.rehearsal import rehearse
from fedsuite.engines.processes import PortTakenError
from fedsuite.results.layout import MANIFEST
from tests.results.made_runs import make_run


class Failing:
    """A federation that makes its folders, and of which a program does not start."""

    error: type[Exception] = RunError
    run_folder: Path | None = None

    def __init__(self, _: object, folder: Path, *__: object, **___: object) -> None:
        init_federation(folder, ["127.0.0.1"], ["node-0"], days=2)

    def start(self) -> None:
        if self.run_folder is not None:
            make_run(self.run_folder, accuracies=((0.5, 0.5),), status="failed")
        raise self.error("SuperLink was not ready")

    def run(self, *_: object) -> None: ...


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    monkeypatch.setattr(rehearsal, "LocalFederation", Failing)
    monkeypatch.setattr(Failing, "error", RunError)
    monkeypatch.setattr(Failing, "run_folder", None)
    return Failing


def values(tmp_path: Path) -> dict[str, str]:
    return {"output-dir": str(tmp_path / "runs"), "run-name": "run"}


def test_a_federation_that_did_not_start_is_not_in_the_way(
    failing: type[Failing], tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(RunError, match="SuperLink was not ready"):
            rehearse(values(tmp_path), 1, tmp_path / "kept", print)
    assert not (tmp_path / "kept").exists()
    # A port that was taken meanwhile is tried again, in the same folder.
    failing.error = PortTakenError
    with pytest.raises(RunError, match="no free port"):
        rehearse(values(tmp_path), 1, tmp_path / "kept", print)


def test_what_a_round_has_left_is_kept(failing: type[Failing], tmp_path: Path) -> None:
    failing.run_folder = tmp_path / "runs" / "run"
    with pytest.raises(RunError, match="SuperLink was not ready"):
        rehearse(values(tmp_path), 1, tmp_path / "kept", print)
    assert (tmp_path / "kept" / "nodes" / "node-0" / "key").exists()
    assert (failing.run_folder / MANIFEST).exists()


def test_a_folder_of_somebody_else_is_left_alone(
    failing: type[Failing], tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        rehearse(values(tmp_path), 1, tmp_path / "kept", print)
    assert (tmp_path / "kept" / "thesis.txt").exists()
