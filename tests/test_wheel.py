"""The wheel: what is in it, and that it works outside the checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.docs.typed import Reader
from tests.small_runs import copy_repository, write_experiment

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, for builds leave files in the folder they are made from.
    source = copy_repository(folder / "source")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("fedsuite-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--quiet", "--target", folder, wheel)
    return folder


def in_wheel(wheel):
    return {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}


@pytest.mark.smoke
def test_wheel_holds_the_package_and_the_experiments_alone(wheel):
    names = in_wheel(wheel)
    files = (p for p in ROOT.glob("fedsuite/**/*") if p.is_file())
    package = {p.relative_to(ROOT).as_posix() for p in files if p.suffix != ".pyc"}
    experiments = {
        p.relative_to(ROOT).as_posix() for p in ROOT.glob("simulations/**/*.toml")
    }
    # Modules of the package have one hash on all machines: these are none.
    app = {f"simulations/plug_in/{name}_app.py.txt" for name in ("client", "server")}
    assert names == package | {f"fedsuite/{name}" for name in experiments | app}
    assert "fedsuite/py.typed" in names
    assert "fedsuite/simulations/quickstart.toml" in names


def test_source_archive_holds_what_the_wheel_is_made_from(wheel, tmp_path):
    source = copy_repository(tmp_path / "source")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (archive,) = tmp_path.glob("fedsuite-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        opened.extractall(tmp_path, filter="data")
    assert {name for name in names if name.endswith("README.md")} == {"README.md"}
    assert not {name for name in names if name.startswith(("tests", "benchmarks", "docs"))}
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, unpacked)
    (again,) = tmp_path.glob("fedsuite-*.whl")
    assert in_wheel(again) == in_wheel(wheel)


def test_what_stands_before_flowers_program_can_be_run(installed):
    assert os.access(installed / "fedsuite/deploy/preloaded/flwr-clientapp", os.X_OK)


def command(installed, folder, *arguments):
    """Run the installed command with no other fedsuite in reach."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    result = subprocess.run(
        [sys.executable, "-P", installed / "bin" / "fedsuite", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_installed_command_lists_methods(installed, tmp_path):
    assert "fedprox" in command(installed, tmp_path, "methods")


@pytest.mark.smoke
def test_installed_command_runs_and_sweeps(installed, tmp_path):
    file = write_experiment(tmp_path / "small.toml")
    command(installed, tmp_path, "sweep", file, "--seeds", "1", "--output", "sweep")
    out = command(installed, tmp_path, "run", file, "--set", "output-dir=out")
    assert "round 1 of 1" in out
    (run,) = (tmp_path / "out").iterdir()
    assert (run / "model.safetensors").is_file()


def test_readmes_first_commands_need_no_repository(wheel, tmp_path):
    """The wheel is installed as experiments.md says, where its reader put the file."""
    page = (ROOT / "README.md").read_text()
    reader = Reader(page, tmp_path, wheel=wheel)
    first, begin = "fedsuite run simulations/", "fedsuite init"
    for words in (first, begin, "fedsuite run fedprox.toml"):
        reader.type(next(line for line in reader.lines if line.startswith(words)))
    for name in ("first", "mine"):
        assert (reader.folder / "runs" / name / "model.safetensors").is_file()


def test_the_copy_is_what_runs(installed, tmp_path):
    script = "import fedsuite; print(fedsuite.__file__)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    result = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(result.stdout.strip()).is_relative_to(installed)
