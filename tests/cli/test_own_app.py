"""The Flower app that ``fedsuite init --app`` writes, in an empty folder."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.typed import Reader

ROOT = Path(__file__).parents[2]
PAGE = (DOCS / "how-to" / "flower_apps.md").read_text()
VARIABLE = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
SMALL = "--run-config num-server-rounds=1 --federation-config num-supernodes=2"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(PAGE, tmp_path)
    yield reader
    reader.leave()


def run_it(reader: Reader) -> str:
    """Write the app, type the very line that the command prints, and return the log."""
    [line] = re.findall(r"^run it: (.+)$", reader.type("fedsuite init --app"), re.MULTILINE)
    return reader.type(line, shorter=SMALL)


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="stops Flower by /proc")
def test_the_app_runs_as_the_command_says(reader: Reader) -> None:
    """No variable is set: Flower's SuperLink makes an environment for the run."""
    log = run_it(reader)
    assert "round 1: accuracy 0." in log


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="stops Flower by /proc")
def test_the_app_runs_where_flower_installs_nothing(reader: Reader) -> None:
    reader.type(f"export {VARIABLE}=1")
    log = run_it(reader)
    assert "round 1: accuracy 0." in log
    assert "Created env for run" not in log


def test_the_command_says_what_the_variable_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedsuite.cli.command import init

    monkeypatch.chdir(tmp_path)
    init("fedavg", own_app=True)
    *_, run, why = capsys.readouterr().out.splitlines()
    assert run == "run it: flwr run . --stream"
    assert f"{VARIABLE}=1" in why and "installs" in why


def test_no_app_lists_what_no_index_has() -> None:
    """Flower would ask the index for it, in each run."""
    folders = ("simulations", "tests")
    projects = [path for name in folders for path in ROOT.glob(f"{name}/**/pyproject.toml")]
    assert len(projects) > 2
    for path in projects:
        document = tomllib.loads(path.read_text())
        # A stranger's app may be Poetry's, without the table of the standard.
        wanted = list(document.get("project", {}).get("dependencies", []))
        wanted += document.get("tool", {}).get("poetry", {}).get("dependencies", {})
        assert not [name for name in wanted if name.startswith("fedsuite")], path
    template = tomllib.loads((ROOT / "simulations/plug_in/pyproject.toml").read_text())
    assert template["project"]["dependencies"] == []
