"""Text files that people write, as the editors and shells of all systems save them."""

import re
import tomllib
from pathlib import Path
from typing import Any

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
    return decoded(path.read_bytes())


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
    return toml(path.read_bytes())


def toml(data: bytes) -> dict[str, Any]:
    """Return the content of :func:`read_toml` of bytes; ValueError if it is none."""
    # TOML's lines may end as they do on Windows.
    text = decoded(data).replace("\r\n", "\n")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if _is_valid(text.replace("\\", "/")):
            raise ValueError(f"{error}: {_ESCAPES}") from None
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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
