"""The page on plug-ins: its package is the one here, and its commands do what it says."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedsuite.core.own_process import environment
from tests.docs.pages import DOCS, blocks
from tests.plug_ins.fakes import PACKAGE

PAGE = (DOCS / "how-to" / "plug_ins.md").read_text()
COMMANDS = [
    line for kind, text in blocks(PAGE) if kind == "console" for line in text.splitlines()
]
RUNS = ("local", "ray", "processes")
"""Names of the page's runs of one experiment on the three engines."""


def files_of_page() -> dict[str, str]:
    """Return the page's files: each fenced block after a line that names it."""
    found = re.findall(
        r"^`([\w./]+)`:?\n\n```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
    )
    return dict(found)


def test_the_page_shows_the_package_of_these_tests() -> None:
    shown = {n: text for n, text in files_of_page().items() if n.startswith("package/")}
    held = {
        f"package/{path.relative_to(PACKAGE)}": path.read_text()
        for path in (*PACKAGE.rglob("*.py"), PACKAGE / "pyproject.toml")
        if path.name != "__init__.py"
    }
    assert shown == held


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the page's files, and the package installed beside it."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in files_of_page().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "package" / "fedsuite_example" / "__init__.py").touch()
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    told = [*words, "--target", str(folder / "installed"), str(folder / "package")]
    run([sys.executable, "-m", "pip", *told], folder)
    return folder


def run(command: Sequence[str], folder: Path) -> str:
    ours = environment()
    paths = [ours.get("PYTHONPATH", ""), str(folder / "installed"), str(folder)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=ours | {"PYTHONPATH": ":".join(filter(None, paths)), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def fedsuite(command: str, folder: Path) -> str:
    return run([sys.executable, "-m", *command.split()], folder)


def final(folder: Path, name: str) -> dict[str, bytes]:
    arrays = load_file(folder / "runs" / name / "model.safetensors")
    return {key: array.tobytes() for key, array in arrays.items()}


@pytest.mark.smoke
@pytest.mark.slow
def test_the_commands_run_to_the_same_bits_on_three_engines(folder: Path) -> None:
    told = {command: fedsuite(command, folder) for command in COMMANDS}
    for command, name in (
        ("methods", "anchored"),
        ("models", "two-layers"),
        ("datasets", "stripes"),
    ):
        assert "fedsuite-example 0.1.0" in told[f"fedsuite {command}"]
        assert name in told[f"fedsuite {command}"]
    assert "anchored-way" in told["fedsuite methods anchored"]
    first, *others = (final(folder, name) for name in RUNS)
    assert set(first) == {"body.weight", "body.bias", "head.weight", "head.bias"}
    assert all(other == first for other in others)
    resolved = (folder / "runs" / "ray" / "experiment.toml").read_text()
    assert 'plug-ins = "fedsuite-example==0.1.0"' in resolved
    assert (folder / "runs" / "own" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_code_that_is_no_package(folder: Path, engine: str) -> None:
    """Whoever starts the nodes allows its name, so that nobody has to."""
    own = "fedsuite run own.toml --num-supernodes 2 --set report=false --set plots=false"
    fedsuite(f"{own} --set run-name=code-{engine} --engine {engine}", folder)
    fedsuite(f"{own} --set run-name=code-local-{engine}", folder)
    assert final(folder, f"code-{engine}") == final(folder, f"code-local-{engine}")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["mine.toml", "own.toml"])
def test_a_federation_whose_nodes_have_the_package(folder: Path, file: str) -> None:
    """No code travels: each process imports what is installed."""
    options = f"{file} --set plots=false --set report=false --set run-name={file[:3]}"
    fedsuite(f"fedsuite run {options}-alone", folder)
    fedsuite(f"fedsuite deploy local {options}-nodes --nodes 2", folder)
    assert final(folder, f"{file[:3]}-nodes") == final(folder, f"{file[:3]}-alone")
