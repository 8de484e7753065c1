"""Measure the house: how many ideas a reader of a run has to know.

    python benchmarks/house.py

Prints one table. It reads ``fedsuite/`` beside this folder, and runs FedProx for two rounds
on the local engine in this process, while a profiler notes which functions are entered.
"""

import ast
import inspect
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "fedsuite"
METHODS_AND_DATA = ("strategies", "clients", "models", "data")
"""Rooms that are no part of the machine under the methods."""

DOOR = {"fedsuite"}
"""The package itself: who imports it reads its version, or where it lies."""

RUN = {"method": "fedprox", "num-rounds": 2, "workers": 1, "plots": False, "report": False}
"""Keys of the traced run beside the quickstart's; those that there are."""

FIRST, LAST = "configure_train", "aggregate_evaluate"
"""Flower's names of what begins a round and what ends it."""

Function = tuple[str, int]
"""A function's file and first line, a decorator's where it has one."""


# ------------------------------------------------------------------------------- the text


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax."""
    return ast.parse(path.read_text())


@cache
def code_lines(path: Path) -> frozenset[int]:
    """Return the lines of a file without empty ones, comments and docstrings."""
    lines = enumerate(path.read_text().splitlines(), 1)
    code = {n for n, line in lines if line.strip() and not line.strip().startswith("#")}
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(end)):
                code -= set(range(node.lineno, end + 1))
    return frozenset(code)


@cache
def files() -> dict[str, Path]:
    """Return the files by module."""
    paths = {path: path.relative_to(ROOT).with_suffix("") for path in HOME.rglob("*.py")}
    return {
        ".".join(name.parts).removesuffix(".__init__"): path
        for path, name in sorted(paths.items())
    }


def room_of(module: str) -> str:
    """Return the package below ``fedsuite`` that a module stands in; empty of its doors.

    What methods are written with, ``method`` and ``client``, are rooms of one file each.
    """
    path = files()[module]
    if path.stem in ("method", "client") and path.parent == HOME:
        return path.stem
    parts = path.parent.relative_to(HOME).parts
    families = parts[:1] in (("strategies",), ("clients",))
    return "/".join(parts[:1] if families else parts)


def imports_of(module: str, known: Set[str]) -> Iterator[str]:
    """Yield the modules of ours that a module imports, anywhere in it, for types too."""
    for node in ast.walk(tree_of(files()[module])):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in known - DOOR)
            case ast.ImportFrom(module=str(source), names=names, level=0):
                for name in names:
                    inner = f"{source}.{name.name}"
                    if {inner, source} & (known - DOOR):
                        yield inner if inner in known else source


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of nodes that reach each other, of two nodes at least."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    reach = {node: reached(node) for node in graph}
    rings = [{o for o in reach[n] if n in reach[o]} | {n} for n in graph]
    return [ring for n, ring in enumerate(rings) if len(ring) > 1 and ring not in rings[:n]]


# -------------------------------------------------------------------------------- the run


@dataclass
class Trace:
    """Notes which functions of fedsuite a run enters; a profiler of :mod:`sys`."""

    entered: set[Function] = field(default_factory=set)
    in_rounds: set[Function] = field(default_factory=set)
    frames_above_a_step: int = 0
    _since: set[Function] | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call or a return."""
        code = frame.f_code
        if event == "call" and code.co_name == "step" and "/optim" in code.co_filename:
            depth = sum(_is_ours(above.f_code) for above in _above(frame))
            self.frames_above_a_step = max(self.frames_above_a_step, depth)
        if not _is_ours(code):
            return
        if event == "return" and code.co_name == LAST and self._since is not None:
            self.in_rounds |= self._since
        if event != "call" or code.co_name == "<module>":
            return
        if code.co_name == FIRST and self._since is None:
            self._since = set()
        function = code.co_filename, code.co_firstlineno
        self.entered.add(function)
        if self._since is not None:
            self._since.add(function)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(f"{HOME}/")


def _above(frame: FrameType) -> Iterator[FrameType]:
    above = frame.f_back
    while above is not None:
        yield above
        above = above.f_back


def traced_run() -> Trace:
    """Return what ``fedsuite run`` enters, from its first line to its last."""
    import fedsuite.cli
    from fedsuite.experiment.run_settings import RunSettings

    there = {"method", *(key.name for key in RunSettings.KEYS)}
    run_keys = {key: value for key, value in RUN.items() if key in there}
    trace, profiled = Trace(), sys.getprofile()
    with tempfile.TemporaryDirectory() as folder:
        words = [f"{key}={str(value).lower()}" for key, value in run_keys.items()]
        options = [x for word in (*words, f"output-dir={folder}") for x in ("--set", word)]
        quickstart = str(ROOT / "simulations" / "quickstart.toml")
        sys.argv = ["fedsuite", "run", quickstart, "--engine", "local", *options]
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            fedsuite.cli.main()
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            sys.setprofile(profiled)
            threading.setprofile(None)
    return trace


def size_of(entered: set[Function]) -> tuple[int, int, int]:
    """Return the numbers of functions, of their lines of code, and of their files."""
    functions, lines = 0, set()
    for path in {Path(file) for file, _ in entered}:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if (str(path), start) in entered:
                functions += 1
                own = range(start, (node.end_lineno or start) + 1)
                lines |= {(path, line) for line in code_lines(path).intersection(own)}
    return functions, len(lines), len({path for path, _ in lines})


# ------------------------------------------------------------------------------ the table


def rows() -> Iterator[tuple[str, str]]:
    """Yield what is measured, and the figures."""
    trace = traced_run()
    from fedsuite.core.registry import METHODS
    from fedsuite.strategies import load_strategy

    known = files()
    size: dict[str, list[int]] = {}
    graph = {module: set(imports_of(module, known.keys())) - {module} for module in known}
    rooms: dict[str, set[str]] = {}
    for module, path in known.items():
        room = room_of(module)
        lines = len(path.read_text().splitlines())
        old = size.get(room, [0, 0])
        size[room] = [old[0] + lines, old[1] + len(code_lines(path))]
        rooms.setdefault(room, set()).update(room_of(other) for other in graph[module])
    machine = [n for room, n in size.items() if room.split("/")[0] not in METHODS_AND_DATA]
    total, code = map(sum, zip(*machine, strict=True))
    yield "machinery: lines, of them code", f"{total:,}, {code:,}"
    words = "functions, code lines, files entered"
    for what, entered in (("run", trace.entered), ("rounds alone", trace.in_rounds)):
        yield f"FedProx, {what}: {words}", ", ".join(f"{n:,}" for n in size_of(entered))
    yield "frames above a client's gradient step", str(trace.frames_above_a_step)
    classes = [load_strategy(method) for method in METHODS.values()]
    ancestors = [
        sum(base.__module__.startswith("fedsuite.") for base in strategy.__mro__[1:])
        for strategy in classes
    ]
    yield "ancestors of a strategy, of all methods", f"{min(ancestors)}-{max(ancestors)}"
    keywords = [len(inspect.signature(strategy).parameters) for strategy in classes]
    yield "keywords of a strategy, of all methods", f"{min(keywords)}-{max(keywords)}"
    outer: dict[str, set[str]] = {room.split("/")[0]: set() for room in rooms}
    for room, others in rooms.items():
        outer[room.split("/")[0]] |= {other.split("/")[0] for other in others}
    counts = len(size), sum(map(len, circles(outer))), len(circles(graph))
    yield "packages, rooms in a circle of imports, circles of files", str(counts)[1:-1]
    for room, (lines, of_code) in sorted(size.items(), key=lambda item: -item[1][0]):
        yield f"`{room or 'doors'}`: lines, of them code", f"{lines:,}, {of_code:,}"


def main() -> None:
    """Print the table."""
    print("| what | now |", "| --- | ---: |", sep="\n")
    for what, figures in rows():
        print(f"| {what} | {figures} |")


if __name__ == "__main__":
    main()
