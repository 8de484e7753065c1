"""The disk below one folder: harsh but lawful, and dead once the process is.

What was written and not flushed may be lost, each name by itself: a new file, a rename, a
deletion, a folder. A write may end half-way. A file at rest may lose a bit.
"""

import builtins
import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.disasters.world import DEATHS, FILE_CLASSES, LINK_KINDS, World

_CLASSES = {
    "rounds.jsonl": "rounds",
    "clients.jsonl": "clients",
    "events.jsonl": "events",
    "manifest.json": "manifest",
    "experiment.toml": "experiment",
    "model.safetensors": "model",
    "best-model.safetensors": "best-model",
    "summary.json": "summary",
    "privacy.ledger": "ledger",
}
_open, _replace, _unlink = builtins.open, os.replace, os.unlink
_mkdir, _fsync = os.mkdir, os.fsync


class Killed(BaseException):
    """The server's process is gone; nothing that it does from here reaches the disk."""


def class_of(path: Path) -> str:
    """Return the kind of a file, also of its temporary one."""
    name = path.name
    if name.startswith(".") and name.endswith(".tmp"):
        name = name[1:].removesuffix(".tmp").rpartition(".")[0]
    if path.parent.name == "checkpoints":
        return "checkpoint"
    if name.endswith(".safetensors") and path.parent.name.isdigit():
        return "state"
    return _CLASSES.get(name, "other")


class Disk:
    """All that the server asks of the disk below one folder."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.root = root
        self.dead = self.changes = False
        """Whether the process is gone, and whether it has begun to change a file."""
        self._failing = 0
        self._unsure: dict[str, Callable[[], None]] = {}
        self._flushed: dict[str, int] = {}

    # ----------------------------------------------------------------- what may go wrong

    def revive(self) -> None:
        """Begin another process, on a disk that a person has made room on."""
        self.dead = self.changes = False
        self._failing = 0

    def moment(self, what: str) -> None:
        """Pass a moment of the process that asks nothing of the disk."""
        if self.dead:
            raise Killed
        self._happen(self.world.process_fault(what), what)

    def _happen(self, kind: str | None, what: str) -> None:
        if kind in DEATHS:
            self._die(kind, what)
        elif kind in ("full", "eio"):
            self._failing = errno.ENOSPC if kind == "full" else errno.EIO
        elif kind == "clock":
            self.world.step_clock(what)
        elif kind in LINK_KINDS:
            self.world.restart_link(kind, what)
        elif kind == "second-server":
            self.world.second_server()

    def _die(self, kind: str | None, what: str) -> None:
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "power":
            self.lose_power(what)
        self.dead = True
        raise Killed

    def _ask(self, operation: str, path: Path, *, needs_space: bool = True) -> str | None:
        """Ask one thing of the disk; return the death that comes while it is done."""
        if self.dead:
            raise Killed
        # A folder is made, and flushed, before it is locked.
        if operation in ("open", "replace", "unlink") and not self.world.in_second_server:
            self.changes = True
        what = f"{operation}:{class_of(path)}"
        kind = self.world.process_fault(what)
        if kind in DEATHS:
            return kind
        self._happen(kind, what)
        if self._failing and needs_space:
            raise OSError(self._failing, os.strerror(self._failing))
        return None

    def lose_power(self, what: str) -> None:
        """Lose what was not flushed, each name and each tail by itself."""
        where = _lasting(what).removeprefix(str(self.root))
        rng = self.world.chance(f"power {self.world.attempt} {where}")
        for undo in reversed(list(self._unsure.values())):
            if rng.random() < 0.6:
                undo()
        for path in sorted(self.root.rglob("*"), key=lambda p: _lasting(str(p))):
            if path.is_file():
                size, kept = path.stat().st_size, self._flushed.get(str(path), 0)
                if kept < size:
                    os.truncate(path, rng.choice([kept, rng.randint(kept, size)]))
        self._unsure.clear()
        files = [p for p in self.root.rglob("*") if p.is_file()]
        self._flushed = {str(p): p.stat().st_size for p in files}
        self.world.booted = self.world.now

    def rot(self) -> Callable[[], None] | None:
        """Flip a bit of a file at rest; return what puts back a copy, None if none did."""
        files = sorted(p for p in self.root.rglob("*") if p.is_file())
        for kind in FILE_CLASSES:
            paths = [p for p in files if class_of(p) == kind and p.stat().st_size]
            if paths and self.world.rest_fault(kind):
                path, data = paths[-1], bytearray(paths[-1].read_bytes())
                whole = bytes(data)
                rng = self.world.chance(f"flip {kind} {self.world.attempt}")
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
                return partial(_put_back, path, bytes(data), whole)
        return None

    # -------------------------------------------------------- what stands in for the disk

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stand between this process and its disk."""
        stand_ins = {
            (builtins, "open"): self._opened,
            (io, "open"): self._opened,
            (os, "replace"): self._replaced,
            (os, "rename"): self._replaced,
            (os, "unlink"): self._unlinked,
            (os, "mkdir"): self._made,
            (os, "fsync"): self._synced,
        }
        known = {(where, name): getattr(where, name) for where, name in stand_ins}
        try:
            for (where, name), stand_in in stand_ins.items():
                setattr(where, name, stand_in)
            yield
        finally:
            for (where, name), real in known.items():
                setattr(where, name, real)

    def _is_ours(self, path: object) -> bool:
        return isinstance(path, str | Path) and str(path).startswith(f"{self.root}{os.sep}")

    def _opened(self, path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if not self._is_ours(path) or mode[0] not in "wa":
            return _open(path, mode, *rest, **options)
        if death := self._ask("open", Path(path)):
            self._die(death, str(path))
        if not os.path.exists(path):
            self._unsure.setdefault(str(path), lambda: _remove(path))
        if mode[0] == "w":
            self._flushed[str(path)] = 0
        return _File(self, _open(path, mode, *rest, **options), Path(path))

    def _replaced(self, source: Any, target: Any, **options: Any) -> None:
        if not self._is_ours(target):
            _replace(source, target, **options)
            return
        death = self._ask("replace", Path(target))
        # Before it or after it.
        half = self.world.chance(f"half {Path(target).name} {self.world.attempt}")
        if death and half.random() < 0.5:
            self._die(death, str(target))
        undo = self._undo(target)
        self._unsure.pop(str(source), None)
        _replace(source, target)
        self._flushed[str(target)] = self._flushed.pop(str(source), 0)
        self._unsure.setdefault(str(target), undo)
        if death:
            self._die(death, str(target))

    def _undo(self, path: Any) -> Callable[[], None]:
        """Return what puts a name back to what it stands for now."""
        if not os.path.exists(path):
            return lambda: _remove(path)
        with _open(path, "rb") as file:
            data, flushed = file.read(), self._flushed.get(str(path), 0)

        def put_back() -> None:
            if os.path.isdir(os.path.dirname(path)):
                _write(path, data)
                self._flushed[str(path)] = flushed

        return put_back

    def _unlinked(self, path: Any, **options: Any) -> None:
        if not self._is_ours(path) or not os.path.exists(path):
            _unlink(path, **options)
            return
        if death := self._ask("unlink", Path(path), needs_space=False):
            self._die(death, str(path))
        self._unsure.setdefault(str(path), self._undo(path))
        _unlink(path, **options)

    def _made(self, path: Any, *rest: Any, **options: Any) -> None:
        if not self._is_ours(path):
            _mkdir(path, *rest, **options)
            return
        death = self._ask("mkdir", Path(path))
        _mkdir(path, *rest, **options)
        self._unsure[str(path)] = lambda: shutil.rmtree(path, ignore_errors=True)
        if death:
            self._die(death, str(path))

    def _synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not self._is_ours(path) and path != self.root:
            return
        death = self._ask("fsync", path)
        if death == "power":
            self._die(death, str(path))
        if path.is_dir():
            for name in [n for n in self._unsure if os.path.dirname(n) == str(path)]:
                del self._unsure[name]
        else:
            self._flushed[str(path)] = os.fstat(descriptor).st_size
        if death:
            self._die(death, str(path))


class _File:
    """A file open for writing; the process may die, or the disk be full, half-way."""

    def __init__(self, disk: Disk, file: Any, path: Path) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def write(self, data: Any) -> int:
        try:
            death = self._disk._ask("write", self._path)
        except OSError:
            self._half(data)
            raise
        if death:
            self._half(data)
            self._disk._die(death, str(self._path))
        written: int = self._file.write(data)
        self._file.flush()
        return written

    def _half(self, data: Any) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        number: int = self._file.fileno()
        return number

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _lasting(path: str) -> str:
    """Return a path without the process's number, which another process has not."""
    return re.sub(r"\.\d+-\d+\.tmp$", ".tmp", path)


def _write(path: Any, data: bytes) -> None:
    with _open(path, "wb") as file:
        file.write(data)


def _put_back(path: Path, rotten: bytes, whole: bytes) -> None:
    """Put back what a bit has changed, unless the file was written anew."""
    if path.is_file() and (data := path.read_bytes()).startswith(rotten):
        _write(path, whole + data[len(rotten) :])


def _remove(path: Any) -> None:
    if os.path.exists(path):
        _unlink(path)
