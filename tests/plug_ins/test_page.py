"""The page on plug-ins: its package is the one here, and its commands do what it says."""

from collections.abc import Iterator

import pytest
from safetensors.numpy import load_file

from tests.docs.pages import DOCS, files
from tests.docs.typed import Reader, console_lines
from tests.plug_ins.fakes import PACKAGE

PAGE = (DOCS / "how-to" / "plug_ins.md").read_text()


def test_the_page_shows_the_package_of_these_tests() -> None:
    shown = {n: text for n, text in files(PAGE).items() if n.startswith("package/")}
    held = {
        f"package/{path.relative_to(PACKAGE)}": path.read_text()
        for path in (*PACKAGE.rglob("*.py"), PACKAGE / "pyproject.toml")
    }
    assert shown == held


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Return a reader who wrote the page's files, and installed its package."""
    reader = Reader(PAGE, tmp_path_factory.mktemp("page"))
    reader.write_files()
    reader.type("export PYTHONPATH=$PWD")
    reader.type("pip install ./package")
    yield reader
    reader.leave()


def line_of(name: str) -> str:
    """Return the page's line that makes the run of this name."""
    [line] = [line for line in console_lines(PAGE) if line.endswith(f"run-name={name}")]
    return line


def final(reader: Reader, name: str) -> dict[str, bytes]:
    arrays = load_file(reader.folder / "runs" / name / "model.safetensors")
    return {key: array.tobytes() for key, array in arrays.items()}


@pytest.mark.smoke
@pytest.mark.slow
def test_the_commands_run_to_the_same_bits_in_process_and_on_ray(reader: Reader) -> None:
    processes = ("deploy local", "--engine deployment")
    lines = [ln for ln in reader.lines if not any(words in ln for words in processes)]
    printed = {line: reader.type(line) for line in lines}
    for command, name in (
        ("methods", "anchored"),
        ("models", "two-layers"),
        ("datasets", "stripes"),
    ):
        assert "fedsuite-example 0.1.0" in printed[f"fedsuite {command}"]
        assert name in printed[f"fedsuite {command}"]
    assert "anchored-way" in printed["fedsuite methods anchored"]
    local = final(reader, "local")
    assert set(local) == {"body.weight", "body.bias", "head.weight", "head.bias"}
    assert final(reader, "ray") == local
    manifest = (reader.folder / "runs" / "ray" / "manifest.json").read_text()
    assert '"own_code": "fedsuite-example 0.1.0 (' in manifest
    assert (reader.folder / "runs" / "own" / "model.safetensors").exists()


@pytest.mark.slow
def test_real_processes_have_the_same_bits(reader: Reader) -> None:
    for name in ("local", "processes"):
        if not (reader.folder / "runs" / name).exists():
            reader.type(line_of(name))
    assert final(reader, "processes") == final(reader, "local")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_code_that_is_no_package(reader: Reader, engine: str) -> None:
    """Whoever starts the nodes allows its name, so that nobody has to."""
    quiet = "--num-supernodes 2 --set report=false"
    line = line_of("own")
    reader.type(line, shorter=f"{quiet} --set run-name=code-{engine} --engine {engine}")
    reader.type(line, shorter=f"{quiet} --set run-name=code-local-{engine}")
    assert final(reader, f"code-{engine}") == final(reader, f"code-local-{engine}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "alone"), [("mine-nodes", "local"), ("own-nodes", "own")]
)
def test_a_federation_whose_nodes_have_the_package(
    reader: Reader, nodes: str, alone: str
) -> None:
    """No code travels: each process imports what is installed."""
    small = "--set report=false"
    reader.type(line_of(nodes), shorter=small)
    reader.type(line_of(alone), shorter=f"{small} --set run-name={alone}-alone")
    assert final(reader, nodes) == final(reader, f"{alone}-alone")
