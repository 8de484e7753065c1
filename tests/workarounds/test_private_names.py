"""Private names of other packages stand in ``fedsuite/workarounds`` alone.

They change without notice, and each there has a condition for its removal.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedsuite
from tests.workarounds import leaned_on

HOME = Path(fedsuite.__file__).parent
PRIVATE = re.compile(r"_(?!_)\w+")
WITHIN = re.compile(r"\b(flwr|ray|torch)(\.\w+)*\._(?!_)\w+")


def own_names(tree: ast.Module) -> Iterator[str]:
    """Yield what a file defines: functions, classes, variables, attributes of ``self``."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                yield node.attr
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="self"))):
                yield from entry_of(node)


def entry_of(node: ast.AST) -> Iterator[str]:
    """Yield the private name of ``x.__dict__["name"]`` or ``getattr(x, "name")``."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="__dict__"), slice=name):
            names = [name]
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="__dict__"))):
            names = node.args
        case ast.Call(func=ast.Name("getattr" | "setattr" | "hasattr" | "delattr")):
            names = node.args
        case _:
            names = []
    for name in names:
        match name:
            case ast.Constant(value=str(text)) if PRIVATE.fullmatch(text):
                yield text


def is_own(owner: ast.expr) -> bool:
    """Return whether an attribute's owner is ``self``, ``cls`` or ``super()``."""
    match owner:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"), args=[]):
            return True
    return False


def foreign_names(
    tree: ast.Module, of_package: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield the private names of other packages that a file uses.

    What the package defines elsewhere, ``self`` may have inherited.
    """
    here = set(own_names(tree))
    stated = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                words = {word for name in node.names for word in name.name.split(".")}
                yield from filter(PRIVATE.fullmatch, words)
            case ast.ImportFrom(module=str(module)) if not module.startswith("fedsuite"):
                words = {*module.split("."), *(name.name for name in node.names)}
                yield from filter(PRIVATE.fullmatch, words)
            case ast.Attribute(value=ast.Name(id=package)) if (
                package in sys.stdlib_module_names
            ):
                pass  # such as os._exit, which is documented
            case ast.Attribute(value=owner, attr=name) if PRIVATE.fullmatch(name):
                if name not in here and not (is_own(owner) and name in of_package):
                    yield name
            case ast.Subscript() | ast.Call():
                yield from (name for name in entry_of(node) if name not in here)
            case ast.Constant(value=str(text)) if id(node) not in stated:
                yield from (found.group() for found in WITHIN.finditer(text))


@cache
def foreign() -> dict[Path, list[str]]:
    """Return what :func:`foreign_names` says of each file of the package."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(HOME.rglob("*.py"))}
    defined = frozenset(name for tree in trees.values() for name in own_names(tree))
    return {path: sorted(foreign_names(tree, defined)) for path, tree in trees.items()}


def test_private_names_of_others_stand_in_workarounds() -> None:
    used = {
        str(path.relative_to(HOME)): names
        for path, names in foreign().items()
        if path.parent.name != "workarounds" and names
    }
    # Stands below the workarounds, which pack messages.
    assert used == {"messages/array_records.py": ["_data"]}


def test_the_table_of_what_is_leaned_on_is_true() -> None:
    """``python -m tests.workarounds.leaned_on --write`` writes it."""
    written = leaned_on.written()
    assert set(written) - set(leaned_on.releases()) == set(leaned_on.names())
    if any(written[k] != version for k, version in leaned_on.releases().items()):
        pytest.skip("the table is of other releases; `make canary` compares")
    assert list(leaned_on.changes()) == []


def test_each_private_attribute_stands_in_a_source_that_is_hashed() -> None:
    """But for torch's, which Flower does not bring."""
    texts = "\n".join(map(leaned_on.source, leaned_on.names()))
    used = {
        name
        for path, names in foreign().items()
        if path.name != "torch_modules.py"
        and (path.parent.name == "workarounds" or path.name == "array_records.py")
        for name in names
    }
    assert {"_message_id", "_src_node_id", "_data"} <= used
    assert sorted(name for name in used - {"_private"} if name not in texts) == []


def test_what_changed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    changed, gone, *_ = leaned_on.names()
    before, source = leaned_on.table(), leaned_on.source
    other = {changed: "other", gone: ""}
    monkeypatch.setattr(leaned_on, "written", lambda: before | {"flwr.old:Name": "0"})
    monkeypatch.setattr(leaned_on, "source", lambda name: other.get(name, source(name)))
    lines = [f"{changed}: changed", f"{gone}: gone", "flwr.old:Name: no longer used"]
    assert list(leaned_on.changes()) == lines


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from torch.nn.modules.utils import _pair", ["_pair"]),
        ("def f():\n    import ray._private.utils", ["_private"]),
        ("from flwr._inner import Thing", ["_inner"]),
        ("list(model._modules)", ["_modules"]),
        ("torch.ops.aten._log_softmax(x)", ["_log_softmax"]),
        ("class A(SGD):\n    def f(self): return self._step_hooks", ["_step_hooks"]),
        ("getattr(kind, '_save_to_state_dict')", ["_save_to_state_dict"]),
        ("message.metadata.__dict__['_id'] = 1", ["_id"]),
        ("record.__dict__.get('_data')", ["_data"]),
        ("if name.endswith('_norm'): pass", []),
        ("monkeypatch('flwr.server._run.start')", ["flwr.server._run"]),
        ("class A:\n    def f(self, other):\n        self._x = other._x", []),
        ("import os\nos._exit(0)", []),
        ('"""What torch._dynamo is."""', []),
    ],
)
def test_what_would_be_found(line: str, found: list[str]) -> None:
    assert list(foreign_names(ast.parse(line))) == found
