"""Nothing that runs what it reads: the package's source is scanned for it.

No pickle and its like, no evaluation of text, no shell, no loader that unpickles; and no
process is started by what server and clients import to handle messages.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedsuite"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"}
MODULES |= {"marshal", "code", "codeop", "pty", "commands"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
OS_CALLS = re.compile(r"os\.(system|popen|exec\w+|spawn\w+|posix_spawn\w*)")
MUST_SAY = {
    "torch.load": ("weights_only", True),
    "numpy.load": ("allow_pickle", False),
    "numpy.save": ("allow_pickle", False),
    "numpy.savez": ("allow_pickle", False),
}
"""Calls that are allowed only with an argument that rules out pickle."""

MUST_NAME = {"PIL.Image.open": "formats"}
"""Calls that are allowed only with this argument: Pillow hands some formats to programs."""

BECOMES = {
    "fedsuite/deploy/relay/landlock.py: call of os.execv",
    "fedsuite/deploy/preloaded/superexec.py: call of os.execv",
    "fedsuite/deploy/preloaded/superexec.py: call of os.execve",
}
"""Where a process becomes a program of Flower: without a shell, as a list of words."""

UNSAFE = {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle"}
UNSAFE |= {"numpy.lib.format.read_array", "torch.hub.load", "torch.save"}


def findings(source: str) -> list[str]:
    """Return what a source holds that it must not, each with its line."""
    tree = ast.parse(source)
    names = dict(imported(tree))
    found = [
        f"{node.lineno}: import of {name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in modules_of(node)
        if name.partition(".")[0] in MODULES
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = full_name(node.func, names)
            if reason := objection(called, node):
                found.append(f"{node.lineno}: {reason}")
    return found


def objection(called: str, call: ast.Call) -> str:
    """Return what is wrong with a call, empty if nothing is."""
    said = {k.arg: getattr(k.value, "value", None) for k in call.keywords}
    if called in BUILTINS or called in UNSAFE or OS_CALLS.fullmatch(called):
        return f"call of {called}"
    if called in MUST_SAY:
        argument, value = MUST_SAY[called]
        if said.get(argument) is not value:
            return f"{called} without {argument}={value}"
    if called in MUST_NAME and MUST_NAME[called] not in said:
        return f"{called} without {MUST_NAME[called]}"
    # subprocess's own functions, and whatever passes the argument on to them.
    if "shell" in said and said["shell"] is not False:
        return f"{called} with a shell"
    return ""


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that a source gives to a module or a part of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                head = alias.name.partition(".")[0]
                yield alias.asname or head, alias.name if alias.asname else head
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that a statement may import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = node.module or ""
    return [module, *(f"{module}.{alias.name}" for alias in node.names)]


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return ``numpy.load`` for ``np.load``; empty for what has no such name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        head = full_name(node.value, names)
        return f"{head}.{node.attr}" if head else ""
    return ""


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import cloudpickle as c",
        "eval(text)",
        "exec(text)",
        "compile(text, '', 'exec')",
        "__import__(text)",
        "import os\nos.system('ls')",
        "from os import system as s\ns('ls')",
        "import os\nos.execvp('ls', [])",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.Popen('ls', shell=flag)",
        "import yaml\nyaml.load(text)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "from numpy import load\nload(path)",
        "from numpy.lib import format as f\nf.read_array(stream)",
        "from PIL import Image\nImage.open(path)",
        "import PIL.Image\nPIL.Image.open(path)",
    ],
)
def test_the_scan_sees_it(bad: str) -> None:
    assert findings(bad)


@pytest.mark.parametrize(
    "fine",
    [
        "model.eval()",
        "import re\nre.compile('a')",
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
    ],
)
def test_the_scan_lets_pass(fine: str) -> None:
    assert findings(fine) == []


def test_nothing_in_the_package_runs_what_it_reads() -> None:
    assert len(SOURCES) > 150
    found = {
        f"{path.relative_to(ROOT)}:{finding}"
        for path in [*SOURCES, *sorted((ROOT / "deploy").rglob("*.py"))]
        for finding in findings(path.read_text())
    }
    assert {re.sub(r":\d+:", ":", finding) for finding in found} == BECOMES


# What handles messages

STARTS_PROCESSES = {"subprocess", "multiprocessing", "pty"}


def source_of(module: str) -> Path | None:
    """Return the file of one of the package's modules, None where it is no module."""
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((c for c in candidates if c.is_file()), None)


def reachable(starts: list[Path]) -> set[Path]:
    """Return the package's files that some of them import, however indirectly."""
    found, waiting = set(starts), list(starts)
    while waiting:
        tree = ast.parse(waiting.pop().read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name in modules_of(node):
                    path = source_of(name) if name.startswith("fedsuite.") else None
                    if path is not None and path not in found:
                        found.add(path)
                        waiting.append(path)
    return found


def test_no_process_is_started_where_messages_are_handled() -> None:
    entries = [PACKAGE / "server_app.py", PACKAGE / "client_app.py"]
    # Methods are imported by name, from the registry.
    methods = [*PACKAGE.glob("strategies/**/*.py"), *PACKAGE.glob("clients/**/*.py")]
    handling = reachable([*entries, *methods])
    assert PACKAGE / "messages" / "records.py" in handling
    assert not {PACKAGE.parent / place.partition(":")[0] for place in BECOMES} & handling
    assert PACKAGE / "results" / "writer.py" in handling
    for path in handling:
        names = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in modules_of(node)
        }
        assert names.isdisjoint(STARTS_PROCESSES), path
    # The scan would see them: the engines do start processes.
    assert not handling & set(PACKAGE.glob("engines/processes.py"))
    assert "import subprocess" in (PACKAGE / "engines" / "processes.py").read_text()


# The pinned sets


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("constraints/*.txt")), ids=lambda p: p.stem
)
def test_every_dependency_is_pinned_to_one_version(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines)
    assert len(pins) == len(lines) > 50
    assert all(re.fullmatch(r"[0-9][0-9a-z.+-]*", version) for version in pins.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    items = [item for group in groups for item in group]
    needed = {re.split(r"[\[<>=~ ]", item)[0].lower() for item in items}
    # torch is installed first, by the version that the Makefile names.
    assert needed - {"torch", "fedsuite"} <= set(pins)
