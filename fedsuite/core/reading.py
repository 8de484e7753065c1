"""Reading of files that somebody else may have made, within bounds.

A run's folder may come from anybody. So what is read there is a regular file, never a link,
a pipe or a device; it is no larger than what fedsuite writes; and JSON in it is no deeper.
A file that a person names on a command line is theirs, and may be any of these.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

from fedsuite.core.files import safetensors_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = 2**28
"""Bytes of a file without arrays: who holds what of 1,000,000 clients."""

LONGEST_LINE = 2**22
"""Bytes of a line: 1,000 metrics with the longest names take a tenth of it."""

DEEPEST = 20
"""Levels of JSON in JSON."""

LARGEST_NUMBER = 1e100
"""A number beyond this is none: its square would be infinite."""

_LARGEST_HEADER = 100_000_000
_NUMBERS = frozenset({int, float})
# Windows has neither of the flags.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read; OSError for a link, a pipe, a device or a folder."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(errno.ELOOP, "it is a link: put the file itself there") from None
        raise
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
        if os.fstat(file.fileno()).st_size > largest:
            raise _refused(errno.EFBIG, f"it has more than {largest:,} bytes")
        return file.read(largest)


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
