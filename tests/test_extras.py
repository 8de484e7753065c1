"""The small install: what works without optional packages, and the line that names each."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedsuite.core.extras import (
    EXTRA_OF,
    EXTRAS,
    MissingExtraError,
    how_to_install,
    naming_extras,
    require,
)
from fedsuite.workarounds.flower_release import REQUIREMENT

ROOT = Path(__file__).parents[1]

WITHOUT = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {tuple(EXTRA_OF)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""
"""Beginning of a program in which no optional package can be imported."""


def without_extras(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_extras_bring_what_they_are_named_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {extra: extras[extra] for extra in EXTRAS} == {
        extra: list(packages) for extra, packages in EXTRAS.items()
    }
    assert set(EXTRA_OF.values()) == set(EXTRAS)
    brought = {
        extra: " ".join(extras[extra]).replace("-", "_") for extra in EXTRA_OF.values()
    }
    other = {"ray": "flwr[simulation]", "datasets": "flwr_datasets"}
    for package, extra in EXTRA_OF.items():
        word = other.get(package, package)
        assert word in brought[extra]
        assert not any(line.startswith(word) for line in project["dependencies"])


def test_the_advice_names_the_releases_of_flower_that_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert REQUIREMENT in project["dependencies"]
    told = [
        path
        for path in (ROOT / "fedsuite").rglob("*.py")
        if re.search(r"flwr>=\d", path.read_text())
    ]
    assert told == []


@pytest.mark.parametrize("package", EXTRA_OF)
def test_a_missing_package_says_how_to_install_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsuite.core.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        require(package, "the engine")
    assert str(caught.value) == f"the engine needs {package}: {how_to_install(package)}"


def test_what_is_to_be_installed_is_on_an_index() -> None:
    """``fedsuite[report]`` is not, whatever fedsuite was installed from."""
    assert how_to_install("plotly") == "pip install 'plotly>=6'"
    assert how_to_install("dp_accounting") == "pip install 'dp-accounting>=0.6,<0.7'"
    assert how_to_install("ray") == "pip install 'flwr[simulation]'"
    for package in EXTRA_OF:
        assert "fedsuite" not in how_to_install(package)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="'nowhere'"), naming_extras("it"):
        import nowhere  # type: ignore[import-not-found] # noqa: F401


SMALL_INSTALL = """
import fedsuite.cli.command as command
from fedsuite.strategies import *
from fedsuite.clients import FedAvgClient
from fedsuite.core.registry import METHODS
from fedsuite.strategies import load_strategy

for method in METHODS.values():
    load_strategy(method)

import fedsuite.server_app, fedsuite.client_app, fedsuite.deploy.commands
import fedsuite.deploy.preloaded.superexec

def say(*words):
    sys.argv = ["fedsuite", *words]
    try:
        command.main()
    except SystemExit as end:
        print("code", end.code)

run = ["run", "simulations/quickstart.toml", "--set", "num-rounds=1"]
say(*run, "--set", "run-name=a")
say(*run, "--set", "run-name=b", "--set", "learning-rate=0.05")
say("compare", "runs/a", "runs/b", "--output", "both")
say("report", "runs/a")
say("partition", "simulations/quickstart.toml")
say("compare", "runs/a", "runs/b", "--figure", "a.pdf")
say(*run, "--set", "metrics-port=9400", "--set", "run-name=d")
say("run", "simulations/quickstart.toml", "--engine", "ray")
say("run", "simulations/quickstart.toml", "--set", "dataset=mnist", "--set", "run-name=c")
say("analyse", "suspects", "runs/a")
"""


@pytest.mark.smoke
@pytest.mark.slow
def test_the_small_install_runs_compares_and_names_what_it_lacks(tmp_path: Path) -> None:
    done = without_extras(SMALL_INSTALL, tmp_path)
    drawing = "needs matplotlib: pip install 'matplotlib>=3.8'"
    page = "needs plotly: pip install 'plotly>=6'"
    printed = done.stdout.splitlines()
    assert printed.count(f"no report: the page {page}") == 3
    assert (tmp_path / "runs" / "b" / "model.safetensors").exists()
    assert (tmp_path / "both" / "comparison.md").exists()
    numbers = "needs prometheus_client: pip install 'prometheus-client>=0.20'"
    hub = "needs flwr_datasets: pip install 'flwr-datasets>=0.5'"
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("fedsuite: error:")] == [
        f"fedsuite: error: this command {page}",
        f"fedsuite: error: this command {page}",
        f"fedsuite: error: --figure a.pdf {drawing}",
        f"fedsuite: error: metrics-port = 9400 {numbers}",
        "fedsuite: error: the engine ray needs ray: pip install 'flwr[simulation]'",
        f"fedsuite: error: data set mnist, from the hub, {hub}",
    ]
