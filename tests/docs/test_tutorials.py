"""Tutorials: without outputs, in the table of contents, first on the site, and they run."""

import ast
import json
import os
import re
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord

from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.workarounds.identity import flower_identity
from tests.docs.pages import DOCS, blocks, read_pages
from tests.docs.typed import DROPPED

FOLDER = DOCS / "tutorials"
OWN_MODULE = "fedsuite.strategies.drift.fedlevel"
"""The module that a tutorial writes."""

IMPORTS = re.compile(r"^from (fedsuite\.[\w.]+) import (\([^)]*\)|[^\n]+)", re.M)

PAGES = sorted(page for page in FOLDER.iterdir() if page.name != "index.md")
CELL = re.compile(
    r"^```\{code-cell\} ipython3\n((?::[^\n]*\n)*)(.*?)^```$", re.DOTALL | re.M
)


def cells(page: Path) -> list[str]:
    """Return the source of each code cell, without its options."""
    text = page.read_text()
    if page.suffix == ".md":
        return [source.strip("\n") for _, source in CELL.findall(text)]
    found = json.loads(text)["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def contents(page: Path) -> list[str]:
    """Return the entries of a page's table of contents."""
    [body] = re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.M)
    return [line for line in body.splitlines() if line and line[0] != ":"]


def named(page: Path) -> str:
    return page.name


def test_tutorials_come_first() -> None:
    assert contents(DOCS / "index.md")[0] == "tutorials/index"
    assert sorted(contents(FOLDER / "index.md")) == [page.stem for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_tutorial_holds_no_outputs(page: Path) -> None:
    assert page.suffix in (".md", ".ipynb")
    assert cells(page)
    if page.suffix == ".ipynb":
        found = json.loads(page.read_text())["cells"]
        code = [cell for cell in found if cell["cell_type"] == "code"]
        assert [cell["outputs"] for cell in code] == [[]] * len(code)
        assert {cell["execution_count"] for cell in code} == {None}
    else:
        assert "file_format: mystnb" in page.read_text()
        assert len(cells(page)) == page.read_text().count("{code-cell}")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_cells_are_python_or_commands(page: Path) -> None:
    for source in cells(page):
        first, _, rest = source.partition("\n")
        if first.startswith("%%") and not first.endswith(".py"):
            continue
        text = rest if first.startswith("%%") else source
        # A command that goes on in a second line is none for the highlighter.
        ast.parse(re.sub(r"^!.*$", "pass", text, flags=re.M))


@pytest.mark.parametrize("page", [*PAGES, *read_pages()], ids=named)
def test_what_pages_import_is_there(page: Path) -> None:
    """A page's program names nothing of fedsuite that is gone; its own files may come."""
    sources = cells(page) if page in PAGES else []
    sources += [text for kind, text in blocks(page.read_text()) if kind == "python"]
    for module, names in IMPORTS.findall("\n".join(sources)):
        for name in re.findall(r"\w+", names.partition("  #")[0].partition(" as ")[0]):
            if OWN_MODULE not in (module, f"{module}.{name}"):
                assert hasattr(import_module(module), name), f"{module}: {name}"


def test_the_network_page_works() -> None:
    """The programs of how-to/own_network.md, with a network and rows of ours."""
    page = (DOCS / "how-to" / "own_network.md").read_text()
    _, server, client = [text for kind, text in blocks(page) if kind == "python"]

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(4, 3)
            self.norm = torch.nn.BatchNorm1d(3)
            self.classifier = torch.nn.Linear(3, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.classifier(self.norm(self.body(rows)))
            return found

    def load_rows(client_id: int) -> tuple[Split, Split]:
        rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(client_id))
        split = Split(rows, (rows.sum(dim=1) > 0).long())
        return split, split

    torch.manual_seed(0)
    names: dict[str, Any] = {"build_model": Net, "load_rows": load_rows}
    exec(server, names)
    exec(client, names)
    used = SimpleNamespace(**names)
    initial = ArrayRecord(used.model.state_dict())
    with flower_identity():
        result = used.strategy.start(LocalGrid(used.app, 3), initial, num_rounds=2)
    before, after = used.model.state_dict(), result.arrays.to_torch_state_dict()
    assert list(after) == list(before)
    assert not torch.equal(after["body.weight"], before["body.weight"])
    assert torch.equal(after["classifier.weight"], before["classifier.weight"])
    assert after["norm.num_batches_tracked"].dtype == torch.int64
    assert sorted(path.name for path in Path("state").iterdir()) == ["0", "1", "2"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with the commands by their names, and nothing else set."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if DROPPED.match(name)]:
        monkeypatch.delenv(name)
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ["PATH"]]))


def execute(sources: list[str], folder: Path) -> None:
    """Run cells in a kernel of their own, as the build of the site does."""
    nbclient = pytest.importorskip("nbclient", reason="make docs installs it")
    nbformat = pytest.importorskip("nbformat", reason="make docs installs it")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=3600, resources=where).execute()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_tutorial_runs(page: Path, tmp_path: Path) -> None:
    execute(cells(page), tmp_path)
    assert not processes_of(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc")
def test_nothing_is_left_of_a_federation_whose_page_fails(tmp_path: Path) -> None:
    sources = cells(FOLDER / "two_hospitals.md")
    [last] = [
        i for i, source in enumerate(sources) if source.startswith('start("superlink"')
    ]
    with pytest.raises(Exception, match="ZeroDivisionError"):
        execute([*sources[: last + 1], "1 / 0"], tmp_path)
    assert (tmp_path / "hospital-a.log").exists()
    deadline = time.monotonic() + 60
    while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not left


def processes_of(folder: Path) -> list[str]:
    """Return the commands of other processes that work in a folder or on its files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().replace("\0", " ")
            inside = Path(os.readlink(process / "cwd")).is_relative_to(folder)
        except OSError:
            continue
        if int(process.name) != os.getpid() and (inside or str(folder) in command):
            found.append(command)
    return found
