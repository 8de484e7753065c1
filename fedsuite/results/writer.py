"""Writing of a run's folder while the run goes on.

Whole files are replaced in one step, and lines appended in one batch per call. So the
folder of a killed run can be read. :mod:`fedsuite.results.layout` has the layout.
"""

import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import tomli_w
from filelock import BaseFileLock, FileLock, Timeout
from numpy.typing import NDArray

from fedsuite.core.errors import RunError, described
from fedsuite.core.files import (
    TEMPORARY_PATTERN,
    atomic_write,
    make_folder,
    remove_file,
    sync_folder,
    write_error,
)
from fedsuite.core.keys import Value
from fedsuite.results import layout

CHECKPOINTS = "checkpoints"
STATE = "state"
"""Folders of a run's folder: checkpoints, and the clients' states."""

LOCK = ".lock"
"""File that locks a folder for its writer."""

_AT_FIRST = {LOCK, layout.EXPERIMENT, layout.MANIFEST, layout.PARTITION}
_AT_FIRST |= {layout.MODEL_FACTS}
_AT_FIRST |= {f"{name}.jsonl" for name in (layout.ROUNDS, layout.CLIENTS, layout.EVENTS)}
_AT_FIRST |= {STATE, "tensorboard", "wandb"}
"""What may stand in a run's folder before the first round has ended."""

_BLOCK = 10_000
"""Rows of a table that are written at a time."""

PACKAGES = ("flwr", "flwr-datasets", "ray", "torch", "numpy", "scikit-learn")
"""Packages whose versions the manifest holds."""


class InUseError(RunError):
    """A run's folder that a process writes."""


class RunFolder:
    """A run's folder, opened for writing by :meth:`create` or :meth:`resume`.

    Every method raises RunError, naming the file, if the file cannot be written. The folder
    is locked for one writer until :meth:`finish`, or until the process dies.

    Parameters
    ----------
    path
        An existing folder of a run.
    """

    def __init__(self, path: Path) -> None:
        layout.read_manifest(path)
        self.path = path
        self.finished = False
        """Whether the run has ended well."""
        self._lock: BaseFileLock | None = None

    @classmethod
    def create(
        cls, path: Path, experiment: Mapping[str, Value], manifest: Mapping[str, object]
    ) -> "RunFolder":
        """Make the folder and write the experiment and the manifest into it.

        Parameters
        ----------
        path
            Folder to make. It may exist if it is empty, or if its run ended before its
            first round had.
        experiment
            The full resolved experiment by kebab-case key.
        manifest
            Method, data set, seed, engine and fingerprints of the run. Format, versions,
            machine, starting time and status are added.

        Raises
        ------
        RunError
            If the folder exists and is not empty, or cannot be written.
        """
        lock = _claim(path)
        whole = {
            "format": layout.FORMAT,
            "fedsuite": _version("fedsuite"),
            "versions": {
                "python": platform.python_version(),
                **{name: _version(name) for name in PACKAGES},
            },
            "machine": {
                "system": platform.platform(),
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
            },
            **manifest,
            "started": _now(),
            "finished": None,
            "status": "running",
            "error": None,
            layout.ATTEMPT: _later_than(0),
        }
        try:
            text = tomli_w.dumps(dict(experiment))
            atomic_write(path / layout.EXPERIMENT, text.encode())
            atomic_write(path / layout.MANIFEST, _pretty(whole))
            folder = cls(path)
        except BaseException:
            lock.release()
            raise
        folder._lock = lock
        return folder

    @classmethod
    def resume(
        cls, path: Path, server_round: int | Callable[["RunFolder"], int]
    ) -> "RunFolder":
        """Open the folder of a run that goes on after ``server_round``.

        Lines of later rounds and half-written files are removed, and what the run's end
        made of such lines. The status is running again, in another attempt.

        Parameters
        ----------
        path
            The run's folder.
        server_round
            Round, or what finds it in the folder, which no other process writes by then.
            If that raises, nothing has changed.
        """
        folder = cls(path)
        folder._lock = lock = _locked(path)
        try:
            _flush_names(path)
            if callable(server_round):
                server_round = server_round(folder)
            for leftover in path.rglob(TEMPORARY_PATTERN):
                remove_file(leftover)
            folder._forget_end(server_round)
            folder.truncate_after(server_round)
            attempt = _later_than(folder.attempt)
            changes = {"status": "running", "finished": None, "error": None}
            folder.update_manifest(**changes, **{layout.ATTEMPT: attempt})
        except BaseException:
            lock.release()
            raise
        return folder

    def _forget_end(self, server_round: int) -> None:
        """Delete what an end made of rounds after ``server_round``, if it had such."""
        if self.last_round > server_round:
            for name in layout.MADE_AT_THE_END:
                self.remove(name)

    @property
    def attempt(self) -> int:
        """Number of the process that writes the run: greater than all before it had."""
        return int(layout.read_manifest(self.path).get(layout.ATTEMPT) or 0)

    @property
    def last_round(self) -> int:
        """The last recorded round, 0 for none."""
        rows = layout.read_table(self.path, layout.ROUNDS)
        return max((int(row["round"]) for row in rows), default=0)

    @classmethod
    def stop(cls, path: Path) -> None:
        """Mark a killed run as stopped, unless a process still writes the run."""
        with suppress(RunError), cls.unused(path):
            if layout.read_manifest(path)["status"] == "running":
                cls(path).finish("stopped")

    @staticmethod
    @contextmanager
    def unused(path: Path) -> Iterator[None]:
        """Keep a run's folder from other writers; RunError if a process writes the run."""
        lock = _locked(path)
        try:
            yield
        finally:
            lock.release()

    def append(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Append objects to ``name.jsonl``, in one write that is flushed on return.

        Parameters
        ----------
        name
            ``"rounds"``, ``"clients"`` or ``"events"``.
        rows
            Objects of JSON's types or NumPy scalars, each with a ``"round"``. Numbers that
            are not finite are written as ``null``.
        """
        data = _lines(rows)
        path = layout.lines_path(self.path, name)
        try:
            with open(path, "ab") as file:
                file.write(data)
        except OSError as error:
            raise write_error(path, error) from error

    def write_json(self, name: str, value: Mapping[str, object]) -> None:
        """Write or replace a JSON file; numbers that are not finite become ``null``."""
        atomic_write(self.path / name, _pretty(value))

    def write_tables(
        self,
        name: str,
        tables: Mapping[str, NDArray[np.int64]],
        others: Mapping[str, object],
    ) -> None:
        """Write as :meth:`write_json` does, of tables with very many rows too.

        Parameters
        ----------
        tables
            Whole numbers ``[rows, columns]``, at least one of each.
        others
            What comes after them.
        """
        parts = [
            b"  %s: %s" % (json.dumps(k).encode(), _rows(t)) for k, t in tables.items()
        ]
        if others:
            parts.append(_pretty(others).removeprefix(b"{\n").removesuffix(b"\n}\n"))
        atomic_write(self.path / name, b"{\n" + b",\n".join(parts) + b"\n}\n")

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write or replace a binary file, such as ``model.safetensors``."""
        atomic_write(self.path / name, data)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        remove_file(self.path / name)

    def update_manifest(self, **changes: object) -> None:
        """Change entries of the manifest, such as ``flwr_run_id``."""
        self.write_json(layout.MANIFEST, layout.read_manifest(self.path) | changes)

    def finish(
        self, status: Literal["finished", "failed", "stopped"], error: str | None = None
    ) -> None:
        """Record in the manifest when, how and why the run ended, and release the folder.

        A run that says that it is finished has all of its lines on the disk. Where that
        cannot be recorded, the folder stays locked: see :func:`noting_failure`.
        """
        is_recorded = False
        try:
            if status == "finished":
                self.sync()
            self.update_manifest(finished=_now(), status=status, error=error)
            self.finished = status == "finished"
            is_recorded = True
        finally:
            # After an end that cannot be recorded comes another, which says so.
            if self._lock is not None and (is_recorded or status != "finished"):
                self._lock.release()

    def sync(self) -> None:
        """Flush the appended lines to the disk itself, against a loss of power.

        A checkpoint must not survive rounds whose lines are lost.
        """
        path = self.path
        try:
            for path in self._tables():
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
            # The name of a new table is the folder's.
            sync_folder(self.path)
        except OSError as error:
            raise write_error(path, error) from error

    def truncate_after(self, server_round: int) -> None:
        """Drop torn last lines, and rows of rounds after ``server_round``."""
        for path in self._tables():
            rows = layout.read_table(self.path, path.stem)
            atomic_write(path, _lines(row for row in rows if row["round"] <= server_round))

    def _tables(self) -> list[Path]:
        """Return the JSON-lines files that are there."""
        paths = (layout.lines_path(self.path, name) for name in sorted(layout.TABLES))
        return [path for path in paths if path.exists()]


@contextmanager
def noting_failure(folder: RunFolder) -> Iterator[None]:
    """Record a failure in the manifest; a full disk must not hide the cause."""
    try:
        yield
    except BaseException as error:
        if not folder.finished:
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            reason = None if stopped else described(error)
            try:
                folder.finish("stopped" if stopped else "failed", reason)
            except RunError as second:
                error.add_note(str(second))
        raise


def _flush_names(path: Path) -> None:
    """Flush the names of a run's files: a killed process may not have, and some count."""
    # So may the run folder's own name be, and its parent's. These folders are others': one
    # that may not be read, or lies on a disk that cannot flush it, stops no run.
    for around in (path.parent.parent, path.parent):
        with suppress(OSError):
            sync_folder(around)
    for place in (path, *(inner for inner in path.rglob("*") if inner.is_dir())):
        try:
            sync_folder(place)
        except OSError as error:
            raise write_error(place, error) from error


def _locked(path: Path) -> BaseFileLock:
    """Take and return the folder's lock, or raise if another process holds it.

    Who writes a run's folder takes the lock first. So a folder whose files and folders
    would lead elsewhere is refused here.
    """
    lock = FileLock(path / LOCK)
    try:
        _refuse_links(path, path)
        lock.acquire(timeout=0)
    except Timeout:
        raise InUseError(
            f"run folder {path} is in use: a process still writes this run; wait for it, "
            "or stop it"
        ) from None
    except OSError as error:
        raise write_error(path / LOCK, error) from error
    return lock


def _refuse_links(folder: Path, top: Path) -> None:
    """Refuse links, pipes and devices wherever a run would write."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                # Trackers keep links in their own folders.
                if folder != top or entry.name in (CHECKPOINTS, STATE):
                    _refuse_links(Path(entry.path), top)
            elif not entry.is_file(follow_symlinks=False):
                raise RunError(
                    f"{entry.path} is a link, a pipe or a device: a run's folder holds "
                    "files and folders alone, put a copy in its place"
                )
            elif entry.name in (CHECKPOINTS, STATE) and folder == top:
                raise RunError(f"{entry.path} is no folder: take it away")


def _claim(path: Path) -> BaseFileLock:
    """Claim the folder or raise; only one of two simultaneous runs succeeds."""
    taken = RunError(
        f"run folder {path} exists and is not empty: choose another output-dir, remove the "
        f"folder, or go on with its run by `fedsuite resume {path}`"
    )
    if is_used(path):
        raise taken
    make_folder(path)
    lock = _locked(path)
    try:
        # Another run may have come and gone since the first look.
        if is_used(path):
            raise taken
        _clear(path)
        _flush_names(path)
    except BaseException:
        lock.release()
        raise
    return lock


def status_of(path: Path) -> str:
    """Return a run's status; ``killed`` if it never ended, and no process writes it.

    A process that was killed has left its status at ``running``.
    """
    status = str(layout.read_manifest(path).get("status"))
    if status != "running":
        return status
    try:
        with RunFolder.unused(path):
            # The run may have ended between the two looks.
            status = str(layout.read_manifest(path).get("status"))
            return "killed" if status == "running" else status
    except RunError:
        # A process writes it, or the lock is not ours to look at.
        return status


def is_used(path: Path) -> bool:
    """Return whether a folder holds more than a run that ended before its first round.

    Such a run has nothing to lose, so its folder is not in the way of the next try.
    """
    if not path.is_dir():
        return path.exists()
    names = {entry.name for entry in path.iterdir()}
    whole = layout.MANIFEST in names
    known = _AT_FIRST if whole else {LOCK, layout.EXPERIMENT}
    others = {n for n in names - known if not fnmatch(n, TEMPORARY_PATTERN)}
    if not names or LOCK not in names or others:
        return bool(names)
    if not whole:
        return False
    try:
        ended = layout.read_manifest(path)["status"] == "finished"
        rounds = layout.read_table(path, layout.ROUNDS)
        return ended or next(rounds, None) is not None
    except (RunError, LookupError):
        return True


def _clear(path: Path) -> None:
    """Delete what a run left that ended before its first round, but for the lock."""
    try:
        # The manifest goes last: without it the rest would be somebody else's.
        for entry in sorted(path.iterdir(), key=lambda e: e.name == layout.MANIFEST):
            if entry.name == LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as error:
        raise write_error(path, error) from error


def _plain(value: object) -> object:
    """Return the value in JSON's types, with None for numbers that are not finite."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _lines(rows: Iterable[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(_plain(row)).encode() + b"\n" for row in rows)


def _pretty(value: Mapping[str, object]) -> bytes:
    return json.dumps(_plain(value), indent=2).encode() + b"\n"


def _rows(table: NDArray[np.int64]) -> bytes:
    """Return a table as :func:`_pretty` writes it inside an object, without its memory."""
    between = b"\n    ],\n    [\n      "
    blocks = (table[first : first + _BLOCK] for first in range(0, len(table), _BLOCK))
    row = b",\n      ".join([b"%d"] * table.shape[1])
    texts = (between.join([row] * len(b)) % tuple(b.ravel().tolist()) for b in blocks)
    return b"[\n    [\n      " + between.join(texts) + b"\n    ]\n  ]"


def _version(package: str) -> str | None:
    """Return an installed version, None for a package from a FAB."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _later_than(attempt: int) -> int:
    """Return the time in milliseconds, or the next number where the clock went back."""
    return max(time.time_ns() // 1_000_000, attempt + 1)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
