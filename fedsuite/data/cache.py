"""Decoded arrays on disk, shared by all processes of a machine.

The deployment runtime starts a new process per message. So images are decoded once and kept
as ``.npy`` files under ``FEDSUITE_CACHE`` (default ``~/.cache/fedsuite``). Every process
maps these files into memory. An entry appears under its name complete or not at all.
Checksums are verified whenever an entry is opened; a damaged entry is rebuilt. Each process
decodes the arrays itself where the folder cannot be written.
"""

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from fedsuite.core.progress import Work
from fedsuite.core.reading import mapped_array, parsed, read_bytes

Arrays = dict[str, npt.NDArray[Any]]

_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder of the cache; it need not exist."""
    return Path(os.environ.get("FEDSUITE_CACHE") or "~/.cache/fedsuite").expanduser()


def load_or_build(
    entry: str, build: Callable[[], Mapping[str, npt.NDArray[Any]]]
) -> Arrays:
    """Return the arrays of a cache entry, building and storing them at the first call.

    The name ``entry`` must change whenever the sources do. Other processes wait for
    ``build``.
    """
    folder = cache_folder() / entry
    arrays = _open(folder)
    if arrays is not None:
        return arrays
    lock = FileLock(folder.parent / f"{entry}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _acquire(lock, entry)
    except OSError as error:
        _log.warning("cache %s cannot be written (%s): decoding here", folder.parent, error)
        return dict(build())
    try:
        arrays = _open(folder)
        return arrays if arrays is not None else _store(folder, dict(build()))
    finally:
        lock.release()


def _acquire(lock: FileLock, entry: str) -> None:
    """Take the lock of an entry, however long another process needs to build it."""
    with suppress(Timeout):
        lock.acquire(timeout=0)
        return
    with Work(f"waiting for another process that decodes {entry.split('-')[0]}") as wait:
        while not lock.is_locked:
            with suppress(Timeout):
                lock.acquire(timeout=1)
            wait.show(0)


def _store(folder: Path, arrays: Arrays) -> Arrays:
    """Write an entry; return its mapped arrays, or the given arrays if writing failed."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, array in arrays.items():
            with open(unfinished / f"{name}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        with open(unfinished / _MANIFEST, "w", encoding="utf-8") as file:
            json.dump({name: _checksum(array) for name, array in arrays.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
    except OSError as error:
        _log.warning("cache entry %s cannot be written (%s)", folder, error)
        shutil.rmtree(unfinished, ignore_errors=True)
        return arrays
    return _open(folder) or arrays


def _open(folder: Path) -> Arrays | None:
    """Return the mapped arrays of an entry, ``None`` if absent or damaged."""
    if not folder.exists():
        return None
    try:
        manifest = parsed(read_bytes(folder / _MANIFEST))
        arrays: Arrays = {}
        if set(manifest) != {path.stem for path in folder.glob("*.npy")}:
            raise ValueError("its manifest has other arrays")
        for name, checksum in manifest.items():
            if name != Path(name).name:
                raise ValueError(f"{name!r} is no array's name")
            path = folder / f"{name}.npy"
            arrays[name] = mapped_array(path)
            if _checksum(arrays[name]) != checksum:
                raise ValueError(f"{path} does not match its checksum")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _log.warning("cache entry %s is damaged and will be rebuilt: %s", folder, error)
        return None
    return arrays


def _checksum(array: npt.NDArray[Any]) -> list[object]:
    return [
        zlib.crc32(np.ascontiguousarray(array).data),
        array.dtype.str,
        list(array.shape),
    ]
