"""Readers of files and messages from elsewhere: all are known, and none can be broken.

``FEDSUITE_FAULTS=all`` tries ten thousand inputs of each target, otherwise a few.
"""

import os
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.faults.runs import ALL
from tests.readers.harness import CORPUS, attempt, wounded
from tests.readers.scan import places, readers
from tests.readers.targets import TARGETS

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((Path(__file__).parent / "readers.toml").read_text())
INPUTS = 10_000 if ALL else 5
REPLACED = ("pipe", "zero", "loop", "folder", "socket", "empty")


def test_every_reader_is_in_the_table() -> None:
    listed = [
        place for part in TABLE.values() for names in part.values() for place in names
    ]
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(places())


def test_every_target_of_the_table_is_there() -> None:
    assert list(TABLE["targets"]) == list(TARGETS)
    assert all((ROOT / test).is_file() for test in TABLE["tests"])
    assert {case.parent.name for case in CORPUS.glob("*/*")} <= set(TARGETS)


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads(text)",
        "from json import load\nload(file)",
        "open(path)",
        "with path.open('rb') as file:\n    pass",
        "path.read_bytes()",
        "import numpy as np\nnp.load(path)",
        "import tomllib\ntomllib.loads(text)",
        "import pyarrow.parquet as pq\npq.read_table(path)",
        "import zipfile\nzipfile.ZipFile(path)",
        "from PIL import Image\nImage.open(path)",
        "import os\nos.environ['A']",
        "line.recv(9)",
        "self.rfile.read(9)",
        "from fedsuite.core.text import toml\ntoml(data)",
        "from fedsuite.core.reading import parsed\nparsed(data)",
    ],
)
def test_the_scan_sees_it(source: str) -> None:
    assert list(readers(source)) == ["<module>"]


@pytest.mark.parametrize("source", ["open(path, 'wb')", "path.open('ab')", "stage.open(x)"])
def test_the_scan_lets_pass(source: str) -> None:
    assert not readers(source)


@pytest.fixture(scope="module")
def whole_inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, target in TARGETS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        target.make(folders[name])
    return folders


@pytest.mark.parametrize("name", TARGETS)
def test_inputs(name: str, whole_inputs: dict[str, Path], tmp_path: Path) -> None:
    """The whole input is accepted, and of the wounded ones nothing else comes out."""
    folder = tmp_path / "input"
    shutil.copytree(whole_inputs[name], folder)
    assert attempt(TARGETS[name], folder) == ""
    for number in range(INPUTS):
        shutil.rmtree(folder)
        print(number, wounded(name, whole_inputs[name], folder, number))
        attempt(TARGETS[name], folder)


@pytest.mark.parametrize("name", TARGETS)
def test_no_file_is_one(name: str, whole_inputs: dict[str, Path], tmp_path: Path) -> None:
    """A pipe, a device, a folder or nothing in a file's place is waited for by nobody."""
    files = [path for path in whole_inputs[name].rglob("*") if path.is_file()]
    file = min(files).relative_to(whole_inputs[name])
    for kind in REPLACED:
        folder = tmp_path / kind
        shutil.copytree(whole_inputs[name], folder)
        (folder / file).unlink()
        if kind == "pipe":
            os.mkfifo(folder / file)
        elif kind == "zero":
            (folder / file).symlink_to("/dev/zero")
        elif kind == "loop":
            (folder / file).symlink_to(file.name)
        elif kind == "folder":
            (folder / file).mkdir()
        elif kind == "empty":
            (folder / file).touch()
        else:
            os.mknod(folder / file, 0o140600)
        attempt(TARGETS[name], folder)


CASES = sorted(CORPUS.glob("*/*"))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parent.name}-{c.name}")
def test_what_failed_once(
    case: Path, whole_inputs: dict[str, Path], tmp_path: Path
) -> None:
    """Files of the corpus, in place of the whole input's."""
    name = case.parent.name
    folder = tmp_path / "input"
    shutil.copytree(whole_inputs[name], folder)
    shutil.copytree(case, folder, dirs_exist_ok=True)
    attempt(TARGETS[name], folder)
