"""Pages of the site that are copies of pages of the repository, with links that hold."""

import os
import re
import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "generated"
"""Folder of `docs/` for pages that are made when the site is built; git ignores it."""

BOARD = ROOT / "simulations" / "leaderboard"

FOLDED = ("results/leaderboard", "results/first_leaderboard")
"""Copies whose long tables are closed at first."""

LONG = 120
"""Lines of Markdown, about two screens, above which a page begins with its contents."""

_CODE = re.compile(r"^(```+|:::+)[^\n]*\n.*?^\1\s*?$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#{2,4}) +(.+?)\s*$", re.MULTILINE)
_BLOCK = r"\n(?:[^\n]+\n)+"
_OPENING = re.compile(rf"^# [^\n]+\n{_BLOCK}(?:(?<=:\n){_BLOCK})?", re.MULTILINE)
"""A title and its first paragraph, with what that introduces by a colon."""
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def copied_pages() -> dict[Path, str]:
    """Return the repository's pages that the site has, each with its place in `docs/`."""
    pages = {
        ROOT / "CHANGELOG.md": "changelog",
        ROOT / "CONTRIBUTING.md": "contributing",
        ROOT / "AGENTS.md": "agents",
        ROOT / "SECURITY.md": "security",
        ROOT / "CODE_OF_CONDUCT.md": "code_of_conduct",
        ROOT / "apps" / "README.md": "apps",
        ROOT / "deploy" / "README.md": "deploy",
        ROOT / "deploy" / "fedal_prototype" / "README.md": "fedal_prototype",
        BOARD / "protocol.md": "results/protocol",
        BOARD / "history.md": "results/leaderboard_history",
        BOARD / "results" / "README.md": "results/leaderboard",
        BOARD / "first" / "README.md": "results/first_leaderboard",
        BOARD / "first" / "protocol.md": "results/first_protocol",
        ROOT / "benchmarks" / "README.md": "results/benchmarks",
        ROOT / "benchmarks" / "log.md": "results/benchmarks_log",
        ROOT / "benchmarks" / "results" / "gpu-faked" / "README.md": "gpu_faked",
        ROOT / "benchmarks" / "results" / "gpu-h200" / "README.md": "results/gpu_h200",
    }
    for page in sorted((ROOT / "apps").glob("*/README.md")):
        pages[page] = f"apps/{page.parent.name}"
    for page in sorted((ROOT / "simulations").glob("*/README.md")):
        pages[page] = f"results/{page.parent.name}"
        pages.setdefault(page.with_name("protocol.md"), f"{pages[page]}_protocol")
    return {page: name for page, name in pages.items() if page.exists()}


def places() -> dict[Path, Path]:
    """Return where on the site a page of the repository is to be found."""
    docs = ROOT / "docs"
    found = {page: docs / GENERATED / f"{name}.md" for page, name in copied_pages().items()}
    return {**found, ROOT / "README.md": docs / "index.md"}


def relinked(text: str, written_for: Path, page: Path) -> str:
    """Return a page's text with relative links that hold where the page is put.

    Parameters
    ----------
    text
        Markdown.
    written_for
        The file whose folder the links start from.
    page
        The file that the text will be in.
    """
    known = places()

    def link(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups()
        if "://" in target or target.startswith(("mailto:", "/")):
            return match.group(0)
        path = Path(os.path.normpath(written_for.parent / target))
        if path.is_dir() and (path / "README.md") in known:
            path = path / "README.md"
        goal = known.get(path, path)
        new = os.path.relpath(goal, page.parent)
        return f"{opening}{new}{anchor or ''}{closing}"

    return _LINK.sub(link, text)


def write_pages(folder: Path) -> None:
    """Empty a folder, and write the copies into it."""
    shutil.rmtree(folder, ignore_errors=True)
    for source, name in copied_pages().items():
        page = folder / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        text = with_contents(relinked(source.read_text(), source, page))
        page.write_text(folded(text) if name in FOLDED else text)


def headings(text: str) -> list[str]:
    """Return the headings below a page's title that its contents name.

    They are those of the second level; where they are few, those of deeper levels too.
    """
    found = _HEADING.findall(_CODE.sub("", text))
    named: list[str] = []
    for deepest in (2, 3, 4):
        named = [re.sub(r"[][]", "", t) for level, t in found if len(level) <= deepest]
        if len(named) > 3:
            break
    return named


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as the site and code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def with_contents(text: str) -> str:
    """Return a long page with links to its parts below its first paragraph.

    A page whose own words before the first part link to several is left as it is.

    Parameters
    ----------
    text
        Markdown, with a title.
    """
    named, opening = headings(text), _OPENING.search(text)
    first_part = re.search(r"^## ", text, re.MULTILINE)
    if len(text.splitlines()) <= LONG or not (named and opening and first_part):
        return text
    if text[: first_part.start()].count("](#") > 1:
        return text
    links = " ·\n".join(f"[{title}](#{anchor_of(title)})" for title in named)
    return f"{text[: opening.end()]}\nOn this page: {links}\n{text[opening.end() :]}"


def folded(text: str, longest: int = 12) -> str:
    """Return a page whose long tables are closed until somebody opens them.

    Parameters
    ----------
    text
        Markdown.
    longest
        Most lines of a table that stays open.
    """
    lines: list[str] = []
    table: list[str] = []
    for line in (*text.splitlines(), ""):
        if line.startswith("|"):
            table.append(line)
            continue
        lines += _closed(table) if len(table) > longest else table
        table = []
        lines.append(line)
    return "\n".join(lines)


def _closed(table: Sequence[str]) -> list[str]:
    columns = [cell.strip() for cell in table[0].strip("|").split("|")]
    title = f"{len(table) - 2} rows: {', '.join(dict.fromkeys(columns))}"
    opening = f"<details><summary>{escape(title)}</summary>"
    return ["", opening, "", *table, "", "</details>", ""]
