"""Memory for arrays with a limit; the rest goes to files that end with the process."""

import itertools
import os
import shutil
import sys
import weakref
from collections.abc import Hashable
from pathlib import Path

from fedsuite.core.errors import RunError
from fedsuite.core.files import (
    make_folder,
    safetensors_arrays,
    safetensors_bytes,
    write_error,
)
from fedsuite.core.least_recent import LeastRecent
from fedsuite.messages.array_records import num_bytes
from fedsuite.messages.records import Arrays


class SpillingMemory:
    """Named arrays by key; over the limit, those used least recently go to files.

    Arrays from a file have the same bits and order. They do not go back into memory: where
    very many clients take turns, each would push out one that comes sooner.

    ``limit`` is bytes in memory, apart from what was put in last. ``folder`` is for this
    memory alone, made when needed and deleted when this memory ends; files that a killed
    process left there are deleted first. Without a folder there is no limit.
    """

    def __init__(self, folder: Path | None = None, limit: int = 0) -> None:
        self._folder = folder
        self._memory = LeastRecent[Hashable, Arrays](
            sys.maxsize if folder is None else limit
        )
        # With the order of the names, which a file does not keep.
        self._spilled: dict[Hashable, tuple[Path, list[str]]] = {}
        self._numbers = itertools.count()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            weakref.finalize(self, _remove, folder, os.getpid())

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self._memory.held

    def get(self, key: Hashable) -> Arrays | None:
        """Return read-only arrays or None; RunError if their file cannot be read."""
        arrays = self._memory.get(key)
        if arrays is None and key in self._spilled:
            return _read(*self._spilled[key])
        return arrays

    def put(self, key: Hashable, arrays: Arrays) -> None:
        """Replace the key's arrays, which nobody may write into.

        RunError if a file cannot be written; nothing is lost then.
        """
        self.drop(key)
        self._memory.add(key, arrays, num_bytes(arrays))
        while (oldest := self._memory.surplus) is not None:
            self._write(oldest)

    def drop(self, key: Hashable) -> None:
        """Forget the arrays of a key, if it has any."""
        self._memory.drop(key)
        if key in self._spilled:
            self._spilled.pop(key)[0].unlink(missing_ok=True)

    def _write(self, key: Hashable) -> None:
        """Move arrays from memory to a file."""
        arrays = self._memory.get(key)
        assert self._folder is not None and arrays is not None
        make_folder(self._folder)
        path = self._folder / f"{next(self._numbers)}.safetensors"
        try:
            # Not flushed to the disk: after a crash nobody reads it.
            path.write_bytes(safetensors_bytes(arrays))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise write_error(path, error) from error
        self._spilled[key] = path, list(arrays)
        self._memory.drop(key)


def _read(path: Path, names: list[str]) -> Arrays:
    try:
        stored, _ = safetensors_arrays(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(
            f"clients' state cannot be read from {path} ({error}): leave state-dir alone "
            "during a run, or raise client-memory"
        ) from error
    arrays = {name: stored[name] for name in names}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _remove(folder: Path, owner: int) -> None:
    """Delete a folder, unless this process is a copy of the one that it belongs to."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
