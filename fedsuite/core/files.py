"""Files that are replaced whole, even if the process dies."""

import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsuite.core.errors import RunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEMPORARY_PATTERN = ".*.tmp"
"""Pattern of the files that a killed :func:`atomic_write` leaves behind."""

_UNSEALED = b"0" * 64
# A tensor's name is followed by a brace, and quotes inside a text are escaped.
_SEAL = re.compile(rb'(?<="fedsuite":"sha256:)[0-9a-f]{64}')


def atomic_write(path: Path, data: bytes) -> None:
    """Write a whole file; a crash at any point leaves the old or the new file.

    The bytes go to a temporary file in the same folder and are flushed to the disk. The
    temporary file takes the file's name in one step. Then the folder is flushed.

    Parameters
    ----------
    path
        File to write; its folder must exist. An existing file is replaced.
    data
        Contents of the file.

    Raises
    ------
    RunError
        If the file cannot be written. The old file is then untouched, and no temporary file
        is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def remove_file(path: Path) -> None:
    """Delete a file, if there is one; a folder of its name is nobody's, and stays.

    Raises
    ------
    RunError
        If it cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise write_error(path, error) from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents, safe against a loss of power.

    Raises
    ------
    RunError
        If the folder cannot be made.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    try:
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names to the disk."""
    # Windows cannot open a folder, and needs no such flush.
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def safetensors_bytes(arrays: Mapping[str, "NDArray[Any]"], note: str = "") -> bytes:
    """Return named arrays and a text as the bytes of a safetensors file with a hash.

    The entry ``fedsuite`` of the file's metadata is ``sha256:HASH NOTE``. The hash is that
    of the whole file with 64 zeros in its place.

    The library writes an array's memory as it lies there. So arrays are copied into C order
    first; a transposed array would otherwise be read back as another.
    """
    import numpy as np
    from safetensors.numpy import save

    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    seal = f"sha256:{_UNSEALED.decode()}"
    data: bytes = save(plain, metadata={"fedsuite": f"{seal} {note}" if note else seal})
    return _SEAL.sub(hashlib.sha256(data).hexdigest().encode(), data, count=1)


def safetensors_arrays(data: bytes) -> tuple[dict[str, "NDArray[Any]"], str]:
    """Return the arrays and the text of :func:`safetensors_bytes`, compared with the hash.

    A file of another program has neither, and one of an early fedsuite a text alone.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    header = min(8 + int.from_bytes(data[:8], "little"), len(data))
    try:
        if seal := _SEAL.search(data, 0, header):
            zeroed = hashlib.sha256(data[: seal.start()] + _UNSEALED)
            zeroed.update(memoryview(data)[seal.end() :])
            if zeroed.hexdigest() != seal[0].decode():
                raise ValueError("it was damaged after it was written: its hash differs")
        arrays: dict[str, NDArray[Any]] = load(data)
        metadata = json.loads(data[8:header]).get("__metadata__") or {}
        note = str(metadata.get("fedsuite", ""))
    except (SafetensorError, LookupError, TypeError) as error:
        raise ValueError(str(error)) from error
    return arrays, note.partition(" ")[2] if seal else note


def write_error(path: Path, error: OSError) -> RunError:
    """Return the one-line error for a file that could not be written."""
    return RunError(f"cannot write {path}: {error.strerror or error}")


def read_error(path: Path, error: OSError) -> RunError:
    """Return the one-line error for a file that could not be read."""
    return RunError(f"cannot read {path}: {error.strerror or error}")
