"""What fedsuite leans on of Flower and Ray beyond their public names, with hashes.

    python -m tests.workarounds.leaned_on            what is not as in the table
    python -m tests.workarounds.leaned_on --write    the table, from what is installed

The names are found in the source: what is imported from modules that are not public, and
the classes of :data:`TOUCHED`, whose private attributes are read or written. A hash is of
the source, for a class of all its base classes too. ``make canary`` compares them with the
newest nightly build of Flower.
"""

import ast
import csv
import hashlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fedsuite
from fedsuite.workarounds.flower_release import flower_release

TABLE = Path(__file__).with_name("leaned_on.csv")
PUBLIC = (
    "flwr.app",
    "flwr.client",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "ray",
    "ray.exceptions",
    "ray.util.scheduling_strategies",
)
"""Modules that Flower and Ray document."""

TOUCHED = (
    "flwr.app:Array",
    "flwr.app:ArrayRecord",
    "flwr.app:Metadata",
    "flwr.app:RecordDict",
    "flwr.serverapp:Grid",
    "flwr.serverapp.strategy:Strategy",
    "flwr.superlink.grid.http_grid:HttpGrid",
)
"""Classes whose private attributes are used, or whose methods are replaced or wrapped."""


@cache
def names() -> tuple[str, ...]:
    """Return the names, as ``module:name``."""
    found = set(TOUCHED)
    for path in Path(fedsuite.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                package = node.module.partition(".")[0]
                if package in ("flwr", "ray") and node.module not in PUBLIC:
                    found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return tuple(sorted(found))


def source(name: str) -> str:
    """Return what is hashed of a name, ``""`` where it is not there."""
    module, _, attribute = name.partition(":")
    try:
        thing = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return ""
    if hasattr(thing, "DESCRIPTOR"):
        fields = thing.DESCRIPTOR.fields
        return "\n".join(f"{field.number} {field.name} {field.type}" for field in fields)
    if inspect.isclass(thing):
        ours = [k for k in thing.__mro__ if k.__module__.startswith(("flwr.", "ray."))]
        return "\n".join(map(inspect.getsource, ours))
    has_source = inspect.isfunction(thing) or inspect.ismodule(thing)
    return inspect.getsource(thing) if has_source else repr(thing)


def releases() -> dict[str, str]:
    """Return the installed versions that the hashes are of."""
    return {"flwr": flower_release(), "ray": importlib.import_module("ray").__version__}


def table() -> dict[str, str]:
    """Return the versions and the hash of each name, from what is installed."""
    hashes = {name: hashlib.sha256(source(name).encode()).hexdigest() for name in names()}
    return {**releases(), **{name: digest[:16] for name, digest in hashes.items()}}


def written() -> dict[str, str]:
    """Return the table as it was written."""
    with TABLE.open(newline="") as file:
        return dict(csv.reader(file))


def changes() -> Iterator[str]:
    """Yield a line for each name that is not as it was written."""
    before, now = written(), table()
    for name in sorted({*before, *now} - {*releases()}):
        if before.get(name) == now.get(name):
            continue
        if name not in before or name not in now:
            yield f"{name}: {'not in the table' if name in now else 'no longer used'}"
        else:
            yield f"{name}: {'changed' if source(name) else 'gone'}"


def main(*words: str) -> None:
    """Write the table, or print what is not as it says."""
    if words == ("--write",):
        rows = table().items()
        with TABLE.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        return
    found = list(changes())
    then, now = ({k: t[k] for k in releases()} for t in (written(), releases()))
    print(f"{len(found)} of {len(names())} names changed from {then} to {now}")
    print(*found, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
