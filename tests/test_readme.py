"""Every command and program in the README and in docs/ runs as it stands there."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import blocks, written_pages
from tests.docs.typed import Reader, console_lines

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
OWN_TESTS = ("flower_apps.md", "plug_ins.md")
"""Pages of which tests/cli/test_own_app.py and tests/plug_ins see more."""
PAGES = {
    page.name: page.read_text()
    for page in (ROOT / "README.md", ROOT / "AGENTS.md", *written_pages())
    if page.name not in OWN_TESTS and console_lines(page.read_text())
}
COMMANDS = [line for page in PAGES.values() for line in console_lines(page)]
SLOW = (
    "--engine ray",
    "--engine deployment",
    "flwr run",
    "deploy local",
)


def is_slow(line: str) -> bool:
    return any(mark in line for mark in SLOW)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of what a newcomer's clone holds."""
    folder = tmp_path / "clone"
    for name in ("fedsuite", "simulations"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_readme_has_commands() -> None:
    assert len(COMMANDS) > 10
    words = ("fedsuite ", "flwr ", "export FLWR_", "export PYTHONPATH=")
    assert all(command.startswith(words) for command in COMMANDS)
    assert "make simulate" in README and "make test" in README


def test_readme_is_read_in_one_go() -> None:
    lines = README.splitlines()
    # The rows of the generated table are as many as the board has problems.
    assert sum(not line.startswith("|") for line in lines) <= 120
    assert not [line for line in lines if len(line) > 100 and not line.startswith("|")]


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"simulate", "test", "test-all", "setup", "config"} <= set(targets)


def quick_lines(page: str) -> list[str]:
    return [line for line in console_lines(page) if not is_slow(line)]


IN_CI = {"README.md": [pytest.mark.smoke]}
"""The pages that CI types; the others are slow tests."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=IN_CI.get(name, []))
        for name, page in PAGES.items()
        if quick_lines(page)
    ],
)
def test_a_pages_quick_lines_run_in_order_in_an_empty_folder(
    name: str, tmp_path: Path
) -> None:
    reader = Reader(PAGES[name], tmp_path)
    reader.write_files()
    for line in quick_lines(PAGES[name]):
        output = reader.type(line)
        if line.startswith("fedsuite compare"):
            # Like with like: one key differs, and the runs are a pair.
            assert "warning:" not in output
            assert "pair by pair" in output
    if name == "README.md":
        assert (reader.folder / "runs" / "first" / "model.safetensors").exists()
        assert (reader.folder / "comparison").is_dir()
    if name == "experiments.md":
        assert (reader.folder / "partition.html").exists()


@pytest.mark.slow
def test_engine_commands_run(tmp_path: Path) -> None:
    marks = ("--engine", "deploy local")
    count = 0
    for number, page in enumerate(PAGES.values()):
        for line in console_lines(page):
            if any(mark in line for mark in marks):
                folder = tmp_path / str(number)
                folder.mkdir(exist_ok=True)
                assert "run folder:" in Reader(page, folder).type(line)
                count += 1
    assert count == 3


@pytest.fixture
def in_clone(clone: Path, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(PAGES["experiments.md"], tmp_path, clone)
    yield reader
    reader.leave()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="stops Flower by /proc")
def test_flowers_own_command_runs(in_clone: Reader, tmp_path: Path) -> None:
    """Results go to the folder that the page names, in the reader's home."""
    for line in in_clone.lines:
        if line.startswith(("export ", "flwr run")):
            in_clone.type(line)
    folders = list((tmp_path / "home" / ".fedsuite" / "runs").iterdir())
    assert len(folders) == 1
    assert (folders[0] / "model.safetensors").exists()


@pytest.mark.smoke
@pytest.mark.slow
def test_python_programs(tmp_path: Path) -> None:
    """The second is a ServerApp of somebody's: it must import."""
    reader = Reader(README, tmp_path)
    assert len([text for kind, text in blocks(README) if kind == "python"]) == 2
    for number in range(2):
        reader.run_program(number)
    assert list((reader.folder / "runs").iterdir())
