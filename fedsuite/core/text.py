"""Text files that people write, as the editors and shells of all systems save them."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedsuite.core.reading import read_named

LARGEST_TOML = 2**22
"""Bytes of a file of TOML: the keys and comments of 10,000 nodes are a tenth of it."""

_DEEPEST = 64
_LARGEST_INT = 2**64
# Python's parser takes time with the square of a key's parts: 20 s for 16,000 of them.
_LONG_KEY = re.compile(
    r"""(?<![^\s\[{,])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    f"{{{_DEEPEST}}}"
)
_TOO_DEEP = "it is nested too deeply"
_BYTE_ORDER_MARK = "\ufeff"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
_ESCAPES = "in double quotes a backslash begins an escape; write a path in '...', or with /"


def read_text(path: Path) -> str:
    """Return a file's text in UTF-8; a byte order mark, as Notepad writes, is dropped.

    Line ends stay as they are.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it has another encoding; the message is a part of a line.
    """
    return decoded(read_named(path))


def decoded(data: bytes) -> str:
    """Return the text of :func:`read_text` of bytes; ValueError of another encoding."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:4]:
        raise ValueError("it is UTF-16: save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"it is not UTF-8, see line {line}: save it as UTF-8") from None
    return text.removeprefix(_BYTE_ORDER_MARK)


def read_toml(path: Path) -> dict[str, Any]:
    r"""Return the content of a TOML file; a wrong path of Windows is named as what it is.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is no TOML in UTF-8; the message is a part of a line.
    """
    return toml(read_named(path, LARGEST_TOML))


def toml(data: bytes) -> dict[str, Any]:
    """Return the content of :func:`read_toml` of bytes; ValueError if it is none."""
    if len(data) > LARGEST_TOML:
        raise ValueError(f"it has more than {LARGEST_TOML:,} bytes")
    # TOML's lines may end as they do on Windows.
    text = decoded(data).replace("\r\n", "\n")
    if key := _LONG_KEY.search(text):
        raise ValueError(f"{_TOO_DEEP}, see line {text.count(chr(10), 0, key.start()) + 1}")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if _is_valid(text.replace("\\", "/")):
            raise ValueError(f"{error}: {_ESCAPES}") from None
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check(values, _DEEPEST)
    return values


def _check(value: Any, levels: int) -> None:
    """Refuse what TOML forbids and Python reads: long whole numbers; and depth."""
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(_TOO_DEEP)
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, levels - 1)
    elif isinstance(value, int) and abs(value) >= _LARGEST_INT:
        # Python refuses to print the longest ones.
        raise ValueError("it holds a whole number of more than 64 bits")


def escape_taken(value: str) -> str:
    r"""Return what is wrong with a value of which an escape made a control character.

    ``"C:\temp"`` is valid TOML, and its third character is a tab. Empty for other values.
    """
    if all(ord(letter) >= ord(" ") for letter in value):
        return ""
    return f"it has a control character: {_ESCAPES}"


def is_file_name(name: str, longest: int) -> bool:
    """Return whether a name may be a file's on every system.

    Letters, digits, dots, dashes and underscores, a letter or digit first and no dot last.
    Windows takes ``nul.txt`` for a device, and ``a.`` for ``a``.
    """
    plain = _FILE_NAME.fullmatch(name) is not None and not name.endswith(".")
    return plain and len(name) <= longest and not _DEVICE.match(name)


def _is_valid(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
