"""The four apps of ``apps/``: valid bundles, which run in this process and under Flower."""

import importlib
import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from sklearn.datasets import load_digits

import fedsuite
from tests.strangers import test_flwr_run

APPS = Path(__file__).parents[2] / "apps"
NAMES = ("fedakd", "fedal", "fedeba-plus", "filter-decomposition")

every_app = pytest.mark.parametrize("name", NAMES)

submit = test_flwr_run.submit
"""Fixture: runs an app on one SuperLink, and returns the run's log."""


def package_of(name: str) -> str:
    [found] = (APPS / name).glob("*/__init__.py")
    return found.parent.name


@pytest.fixture
def task(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(APPS / name))
    yield importlib.import_module(f"{package_of(name)}.task")
    for module in [m for m in sys.modules if m.partition(".")[0] == package_of(name)]:
        del sys.modules[module]


def test_each_folder_is_named_here_and_on_the_page() -> None:
    assert sorted(p.parent.name for p in APPS.glob("*/pyproject.toml")) == list(NAMES)
    page = (APPS / "README.md").read_text()
    assert all(f"]({name}/README.md)" in page for name in NAMES)


@every_app
def test_an_app_is_a_valid_bundle_that_installs_nothing(name: str) -> None:
    config, warnings = load_and_validate(APPS / name / "pyproject.toml")
    assert warnings == []
    assert config["project"]["name"] == name
    # No index has fedsuite: docs/how-to/flower_apps.md says why nothing is listed.
    assert config["project"]["dependencies"] == []
    packed = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APPS / name))).namelist()
    modules = ("__init__", "client_app", "server_app", "task")
    files = {f"{package_of(name)}/{module}.py" for module in modules}
    assert set(packed) == files | {"pyproject.toml", "README.md", ".info/CONTENT"}


@every_app
def test_an_app_learns_in_this_process(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"num-server-rounds": 3}
    if name != "fedeba-plus":
        config |= {"state-dir": str(tmp_path)}
    fedsuite.simulate(APPS / name, num_supernodes=3, run_config=config)
    found = re.findall(r"^round (\d): accuracy (\S+)$", capsys.readouterr().out, re.M)
    assert [int(server_round) for server_round, _ in found] == [1, 2, 3]
    accuracies = [float(accuracy) for _, accuracy in found]
    assert accuracies[0] < accuracies[-1] and accuracies[-1] > 0.3


@every_app
def test_a_node_of_a_federation_brings_a_file(task: ModuleType, tmp_path: Path) -> None:
    images, labels = load_digits(return_X_y=True)
    np.savez(tmp_path / "site.npz", features=images[:50] / 16, labels=labels[:50])
    train, test = task.load_rows({"data": str(tmp_path / "site.npz")})
    assert (len(train), len(test)) == (40, 10)
    parts = [task.load_rows({"partition-id": k, "num-partitions": 4}) for k in range(4)]
    assert train.features.shape[1:] == parts[0][0].features.shape[1:]
    # Each has rows of its own, of a few kinds.
    rows = {tuple(r.flatten().tolist()) for part in parts for s in part for r in s.features}
    assert len(rows) >= 1590
    assert max(len(part[0].labels.unique()) for part in parts) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.smoke] * (n == "fedakd")) for n in NAMES],
)
def test_flwr_run_of_an_app(name: str, submit: test_flwr_run.Submit) -> None:
    log = submit(APPS / name)
    last = 5 if name == "fedeba-plus" else 4
    assert f"[ROUND {last}/{last}]" in log, log
    assert re.search(rf"round {last}: accuracy 0\.\d+", log), log
