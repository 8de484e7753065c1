"""The repository as a Flower app: what travels, and that it runs from there alone."""

import fnmatch
import importlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files

from tests.small_runs import copy_repository

ROOT = Path(__file__).parents[1]
OWN = {"pyproject.toml", "LICENSE", ".info/CONTENT"}


MANY = (".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""Folders of up to 100,000 files, none of which is to travel: a few stand for all."""


@pytest.fixture(scope="module")
def files():
    found = {}
    for path in ROOT.iterdir():
        if path.name in MANY and path.is_dir():
            found |= {f"{path.name}/{p.name}": p for p in path.iterdir() if p.is_file()}
        elif path.is_dir() and not path.is_symlink():
            inside = collect_files(path).items()
            found |= {f"{path.name}/{name}": one for name, one in inside}
        elif not path.is_symlink():
            found[path.name] = path
    return found


@pytest.fixture(scope="module")
def built(files):
    return build_fab_from_files(files)


@pytest.fixture(scope="module")
def bundle(built):
    return built[0]


@pytest.fixture(scope="module")
def names(bundle):
    return set(zipfile.ZipFile(io.BytesIO(bundle)).namelist())


def test_every_module_travels_and_nothing_else(names):
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("fedsuite/**/*.py")}
    files = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("simulations/**/*.toml")
        if path.name != "pyproject.toml"
    }
    assert names == OWN | modules | files
    assert "fedsuite/data/__init__.py" in names
    assert "simulations/quickstart.toml" in names


def test_the_example_app_does_not_travel(names):
    assert "simulations/fedeba/quickstart.toml" in names
    assert not [name for name in names if name.startswith("simulations/plug_in")]


def test_no_module_has_a_name_that_flower_drops():
    for path in ROOT.glob("fedsuite/**/*.py"):
        assert not fnmatch.fnmatch(path.name, "test_*.py"), path
        assert not fnmatch.fnmatch(path.name, "*_test.py"), path


def test_bundle_is_far_below_flowers_limit(bundle):
    assert len(bundle) < 5_000_000


def test_the_bundle_has_format_1(built):
    """Made by Flower from its minimum version, its target and the file of the licence."""
    assert built[1].fab_format_version == 1
    assert built[1].flwr_version_min == "1.39"
    target = (ROOT / "constraints" / "flwr-1.42.txt").read_text()
    assert f"\nflwr=={built[1].flwr_version_target}\n" in target


def test_flower_would_publish_the_root(files, monkeypatch, capsys):
    """By Flower's own rules for ``flwr app publish``: at most 1,000 files, 1 MB each."""
    # The package has a function of this name.
    publish = importlib.import_module("flwr.cli.app_cmd.publish")
    monkeypatch.setattr(publish, "collect_files", lambda root: files)
    paths = publish._collect_file_paths(ROOT)
    publish._validate_files(paths)
    assert "Validation passed" in capsys.readouterr().out
    assert ROOT / "LICENSE" in paths
    assert not [path for path in paths if path.is_relative_to(ROOT / "tests")]
    git = ["git", "-C", ROOT, "check-ignore", "tests/test_app_bundle.py", "tests/new.py"]
    # Git itself ignores nothing there. A copy without Git cannot say.
    if (ROOT / ".git").exists():
        assert subprocess.run(git).returncode == 1


def test_ignore_rules_of_folders_are_anchored():
    lines = (ROOT / ".gitignore").read_text().split()
    names = {path.name for path in ROOT.glob("fedsuite/**") if path.is_dir()}
    assert {"data", "results", "models"} <= names
    assert not {line.rstrip("/") for line in lines} & (names - {"__pycache__"})


@pytest.mark.parametrize("name", ["strategies", "clients"])
def test_links_for_people_who_browse(name, names):
    link = ROOT / name
    assert link.is_symlink()
    assert os.readlink(link) == f"fedsuite/{name}"
    assert link.resolve() == (ROOT / "fedsuite" / name).resolve()
    assert not any(entry.startswith(f"{name}/") for entry in names)


ALONE = """
import sys
from pathlib import Path

home, root = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
# An editable fedsuite is found through finders and paths that lead to a checkout.
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
inside = lambda p: (Path(p) / "fedsuite" / "__init__.py").exists()
sys.path[:] = [str(home), *(p for p in sys.path if not inside(p))]

import fedsuite

assert Path(fedsuite.__file__).parent == home / "fedsuite", fedsuite.__file__
import fedsuite.client_app, fedsuite.server_app

run = fedsuite.run(home / "simulations" / "quickstart.toml", overrides={"num-rounds": 1})
assert run.manifest["status"] == "finished"
for name, module in sys.modules.items():
    if name.partition(".")[0] == "fedsuite":
        assert Path(module.__file__).is_relative_to(home), module.__file__
print(run.path)
"""


@pytest.mark.slow
def test_a_run_from_the_bundle_alone(bundle, tmp_path):
    home = tmp_path / "app"
    zipfile.ZipFile(io.BytesIO(bundle)).extractall(home)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    result = subprocess.run(
        [sys.executable, "-P", "-c", ALONE, home, ROOT],
        cwd=tmp_path,
        env=environment | {"FEDSUITE_DATA": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "round 1 of 1" in result.stdout
    assert Path(result.stdout.splitlines()[-1]).is_relative_to(tmp_path / "runs")


@pytest.mark.smoke
@pytest.mark.slow
def test_flwr_build_takes_the_repository(tmp_path):
    flwr = Path(sys.executable).with_name("flwr")
    result = subprocess.run(
        # Flower wants the folder's name to be a valid name of an app.
        [flwr, "build", "--app", copy_repository(tmp_path / "fedsuite")],
        cwd=tmp_path,
        env=os.environ
        | {
            "FLWR_HOME": str(tmp_path / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "missing" not in result.stdout
    (fab,) = tmp_path.glob("fedsuite.fedsuite.*.fab")
    assert zipfile.is_zipfile(fab)
