"""Reading of files that somebody else may have made, within bounds.

A run's folder may come from anybody. So what is read there is a regular file, never a link,
a pipe or a device; it is no larger than what fedsuite writes; and JSON in it is no deeper.
A file that a person names, or that lies in a folder of data, may be a link to a regular
one, or what a shell gives for a command, ``<(...)``.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeGuard

from fedsuite.core.files import safetensors_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = 2**28
"""Bytes of a file without arrays: who holds what of 1,000,000 clients."""

LARGEST_NAMED = 2**31
"""Bytes of a file that is read whole because a person named it, or its folder."""

LONGEST_LINE = 2**22
"""Bytes of a line: 1,000 metrics with the longest names take a tenth of it."""

DEEPEST = 20
"""Levels of JSON in JSON."""

LARGEST_NUMBER = 1e100
"""A number beyond this is none: its square would be infinite."""

_LARGEST_HEADER = 100_000_000
_OF_SHELLS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_NUMBERS = frozenset({int, float})
# Windows has neither of the flags.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
_THROUGH_LINKS = _FLAGS & ~getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read; OSError for a link, a pipe, a device or a folder."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(errno.ELOOP, "it is a link: put the file itself there") from None
        raise
    with _regular(descriptor) as file:
        yield file


@contextmanager
def _regular(descriptor: int) -> Iterator[BinaryIO]:
    """Give a descriptor as a file and close it; OSError for what is no regular file."""
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise _refused(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise _refused(errno.EINVAL, "it is no file, but a pipe or a device")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """Return what a regular file holds; OSError for another, or a larger one."""
    with opened(path) as file:
        return _whole(file, largest)


def read_named(path: Path, largest: int = LARGEST_NAMED) -> bytes:
    """Return what a file holds that a person named: links lead to it.

    Raises
    ------
    OSError
        If it cannot be read, is larger, or is a pipe or a device and not a shell's.
    """
    if str(path).startswith(_OF_SHELLS):
        with open(path, "rb") as file:
            return _whole(file, largest)
    with _regular(os.open(path, _THROUGH_LINKS)) as file:
        return _whole(file, largest)


def check_regular(path: Path) -> None:
    """Refuse, before another library opens it, what is neither a file nor a link to one.

    Raises
    ------
    OSError
        If it is a pipe, which would be waited for, a device or a folder, or is not there.
    """
    with _regular(os.open(path, _THROUGH_LINKS)):
        pass


def _whole(file: BinaryIO, largest: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    # A pipe has no size beforehand.
    data = file.read(largest + 1) if size <= largest else b""
    if max(size, len(data)) > largest:
        raise _refused(errno.EFBIG, f"it has more than {largest:,} bytes")
    return data


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a regular file; a last one without its end is left out.

    Raises
    ------
    OSError
        If it is no regular file, or a line is too long.
    """
    with opened(path) as file:
        while line := file.readline(LONGEST_LINE):
            if line.endswith(b"\n"):
                yield line
            elif len(line) == LONGEST_LINE:
                raise _refused(errno.EFBIG, f"a line has over {LONGEST_LINE:,} bytes")


def parsed(text: bytes | str) -> Any:
    """Return the value of JSON; ValueError if it is none, or deeper than Python goes."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def bounded(text: bytes | str) -> Any:
    """Return the value of JSON, with None for numbers that do not count.

    Raises
    ------
    ValueError
        If it is no JSON, or deeper than :data:`DEEPEST`.
    """
    return _within(parsed(text), DEEPEST)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that counts."""
    return isinstance(value, int | float) and -LARGEST_NUMBER < value < LARGEST_NUMBER


def read_arrays(path: Path) -> tuple[dict[str, "NDArray[Any]"], str]:
    """Return the arrays and the text of a file of :func:`~.files.safetensors_bytes`.

    Raises
    ------
    OSError, ValueError
        If it is no regular file, or damaged.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        header = file.read(min(int.from_bytes(start, "little"), _LARGEST_HEADER, size))
        try:
            entries = parsed(header)
            ends = [
                entry["data_offsets"][1]
                for name, entry in entries.items()
                if name != "__metadata__"
            ]
            whole = 8 + len(header) + max(ends, default=0)
        except (ValueError, LookupError, TypeError, AttributeError):
            whole = -1
        # A size that its header does not tell is not worth the memory.
        if whole != size:
            raise ValueError("it is torn, or no safetensors file")
        return safetensors_arrays(start + header + file.read())


def mapped_array(path: Path) -> "NDArray[Any]":
    """Return the array of a file of NumPy, mapped and read-only; links lead to it.

    ``numpy.load`` opens archives too, takes the memory that a header names, and where the
    items have no size the whole process dies.

    Raises
    ------
    OSError, ValueError
        If it is no regular file, or its header does not fit it.
    """
    import numpy as np
    from numpy.lib import format as npy

    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with _regular(os.open(path, _THROUGH_LINKS)) as file:
        try:
            version = npy.read_magic(file)
            if version not in headers:
                raise ValueError(f"a header of version {version}")
            shape, is_fortran, dtype = headers[version](file)
            if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
                raise ValueError(f"an array of {dtype} and shape {shape}"[:200])
            start, size = file.tell(), os.fstat(file.fileno()).st_size
            if start + math.prod(shape) * dtype.itemsize != size:
                raise ValueError("its header tells of another size than it has")
            order: Literal["F", "C"] = "F" if is_fortran else "C"
            return np.memmap(file, dtype, "r", start, shape, order)
        except (OSError, ValueError):
            raise
        except Exception as error:
            # NumPy's parser of headers lets through what its tokenizer raises.
            raise ValueError(str(error)) from error


def _within(value: Any, levels: int) -> Any:
    """Return a value of JSON without numbers that do not count."""
    kind: type = type(value)
    if kind in _NUMBERS:
        return value if is_number(value) else None
    if kind is dict or kind is list:
        if not levels:
            raise ValueError("it is nested too deeply")
        items = value.items() if kind is dict else enumerate(value)
        for key, item in items:
            # Inlined, for tables have very many numbers.
            kind = type(item)
            if kind is str or item is None:
                continue
            if kind in _NUMBERS and -LARGEST_NUMBER < item < LARGEST_NUMBER:
                continue
            value[key] = _within(item, levels - 1)
    return value


def _refused(number: int, words: str) -> OSError:
    return OSError(number, words)
