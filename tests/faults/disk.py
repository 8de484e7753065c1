"""A disk that fails at the N-th thing a process asks of it.

The faults are harsh but lawful: what was written and not flushed may be lost, and a name
that was made or changed may be as before until its folder is flushed.
"""

import builtins
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.runs import KILLED


class FaultyDisk:
    """Counts what is asked of the disk below a folder, and fails at one number.

    Counted are opening to write, writing, flushing, renaming, deleting, and making folders.

    Parameters
    ----------
    root
        The folder.
    number
        What fails, from 1; a write fails half-way.
    fault
        Called then: ends the process, or raises.
    lasting
        Whether all that needs space fails from then on, as on a full disk.
    """

    def __init__(
        self,
        root: Path,
        number: int,
        fault: Callable[["FaultyDisk"], None],
        *,
        lasting: bool = False,
    ) -> None:
        self.count = 0
        # The folder itself is made by the process, and is known to be kept.
        root.mkdir(exist_ok=True)
        self._root = root
        self._number = number
        self._fault = fault
        self._lasting = lasting
        self._flushed = {str(p): p.stat().st_size for p in root.rglob("*") if p.is_file()}
        self._unsure: dict[str, Callable[[], None]] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand between this process and its disk."""
        for name in ("replace", "unlink", "mkdir", "fsync"):
            patch.setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))
        patch.setattr(builtins, "open", self._open(open))

    def lose_power(self) -> None:
        """Take back all that was not flushed."""
        for undo in reversed(list(self._unsure.values())):
            undo()
        for path in self._root.rglob("*"):
            if path.is_file():
                os.truncate(path, min(self._flushed.get(str(path), 0), _size(path)))

    def fails(self, path: object, *, needs_space: bool = True) -> bool:
        """Count one more request, and return whether it is one to fail."""
        if not str(path).startswith(str(self._root)):
            return False
        self.count += 1
        if self._lasting:
            return needs_space and self.count >= self._number
        return self.count == self._number

    def step(self, path: object, *, needs_space: bool = True) -> None:
        """Count one more request, and fail if it is the one."""
        if self.fails(path, needs_space=needs_space):
            self.fail()

    def fail(self) -> None:
        """Do what is to happen."""
        self._fault(self)

    def _open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not str(path).startswith(str(self._root)) or mode[0] not in "wa":
                return real(path, mode, *arguments, **options)
            self.step(path)
            if not os.path.exists(path):
                self._unsure[str(path)] = lambda: _remove(path)
            if mode[0] == "w":
                self._flushed[str(path)] = 0
            return _File(self, real(path, mode, *arguments, **options), str(path))

        return opened

    def _replace(self, real: Callable[..., None]) -> Callable[..., None]:
        def replace(source: Any, target: Any) -> None:
            self.step(target)
            old = target.read_bytes() if target.exists() else None
            self._unsure.pop(str(source), None)
            self._flushed[str(target)] = self._flushed.pop(str(source), 0)
            real(source, target)
            self._unsure[str(target)] = lambda: self._put_back(target, old)

        return replace

    def _put_back(self, target: Path, old: bytes | None) -> None:
        _remove(target)
        if old is not None:
            target.write_bytes(old)
            self._flushed[str(target)] = len(old)

    def _unlink(self, real: Callable[..., None]) -> Callable[..., None]:
        def unlink(path: Any, **options: Any) -> None:
            self.step(path, needs_space=False)
            real(path, **options)

        return unlink

    def _mkdir(self, real: Callable[..., None]) -> Callable[..., None]:
        def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
            self.step(path)
            real(path, *arguments, **options)
            self._unsure[str(path)] = lambda: shutil.rmtree(path, ignore_errors=True)

        return mkdir

    def _fsync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self.step(path)
            real(descriptor)
            if os.path.isdir(path):
                for name in [n for n in self._unsure if os.path.dirname(n) == path]:
                    del self._unsure[name]
            elif path.startswith(str(self._root)):
                self._flushed[path] = os.fstat(descriptor).st_size

        return fsync


class _File:
    """A file that is written, by a process that may fail half-way through."""

    def __init__(self, disk: FaultyDisk, file: Any, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def write(self, data: bytes) -> None:
        if self._disk.fails(self._path):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            self._disk.fail()
        self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        number: int = self._file.fileno()
        return number

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def die(disk: FaultyDisk) -> None:
    """End the process as SIGKILL does: what was written stays."""
    os._exit(KILLED)


def lose_power(disk: FaultyDisk) -> None:
    """End the process as a loss of power does at its worst."""
    disk.lose_power()
    os._exit(KILLED)


def be_full(disk: FaultyDisk) -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _size(path: Path) -> int:
    return path.stat().st_size


def _remove(path: Any) -> None:
    if os.path.exists(path):
        os.remove(path)
