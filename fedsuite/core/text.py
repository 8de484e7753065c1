"""Text files that people write, as the editors and shells of all systems save them."""

import tomllib
from pathlib import Path
from typing import Any

_BYTE_ORDER_MARK = "\ufeff"
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
    data = path.read_bytes()
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
    # TOML's lines may end as they do on Windows.
    text = read_text(path).replace("\r\n", "\n")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if _is_valid(text.replace("\\", "/")):
            raise ValueError(f"{error}: {_ESCAPES}") from None
        raise ValueError(str(error)) from None


def escape_taken(value: str) -> str:
    r"""Return what is wrong with a value of which an escape made a control character.

    ``"C:\temp"`` is valid TOML, and its third character is a tab. Empty for other values.
    """
    if all(ord(letter) >= ord(" ") for letter in value):
        return ""
    return f"it has a control character: {_ESCAPES}"


def _is_valid(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
