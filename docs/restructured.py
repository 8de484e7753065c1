"""Docstrings, which hold equations as plain text, as reStructuredText and Markdown."""

import re
import textwrap

_LITERAL = re.compile(r"(``.+?``|:\w+:`[^`]+`)")


def plain_line(line: str) -> str:
    """Return a docstring's line with escapes where reST would read signs as markup."""
    parts = _LITERAL.split(line)
    parts[::2] = [_escaped(part) for part in parts[::2]]
    return "".join(parts)


def _escaped(text: str) -> str:
    if re.fullmatch(r"\s*(\*|\*\*)?\w*", text) and not text.strip(" *"):
        return text
    bullet = re.match(r"\s*\* ", text)
    start = bullet.end() if bullet else 0
    rest = re.sub(r"(?<!\\)([*|])", r"\\\1", text[start:])
    return text[:start] + re.sub(r"(?<=\w)_(?!\w)", r"\\_", rest)


_CODE = re.compile(r"``(.+?)``|:\w+:`~?([^`]+)`")
_ITEM = re.compile(r"([-*]|\d+\.) ")


def markdown(text: str) -> str:
    """Return a docstring as Markdown; paragraphs that are indented stay as they stand."""
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return f"```text\n{textwrap.dedent(text)}\n```"
    listed = _ITEM.match(text)
    return "\n".join(_line(line, listed) for line in text.splitlines())


def _line(line: str, listed: re.Match[str] | None) -> str:
    """Return a line of a paragraph; ``listed`` if the paragraph is a list."""
    marker = _ITEM.match(line) if listed else None
    start = marker.end() if marker else 0
    parts = re.split(r"(``.+?``|:\w+:`[^`]+`)", line[start:])
    parts[::2] = [re.sub(r"([\\*_<>|$\[\]~#`])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [
        _CODE.sub(lambda m: f"`{m.group(1) or m.group(2)}`", p) for p in parts[1::2]
    ]
    whole = "".join(parts)
    if not marker:
        whole = re.sub(r"^(\s*)([-+]|\d+\.)(?= )", r"\1\\\2", whole)
    return line[:start] + whole
