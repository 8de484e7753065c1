"""The pages of the site, as files."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# The site's own modules lie beside its pages.
sys.path.append(str(DOCS))


def written_pages(suffix: str = "md") -> list[Path]:
    """Return the pages that people write, without those that a build makes."""
    made = ("_build", "generated", ".ipynb_checkpoints")
    return sorted(
        page
        for page in DOCS.rglob(f"*.{suffix}")
        if not set(made) & set(page.relative_to(DOCS).parts)
    )


def read_pages() -> list[Path]:
    """Return all pages that the site shows, and the README."""
    from repository_pages import copied_pages

    return [ROOT / "README.md", *copied_pages(), *written_pages()]


def blocks(text: str) -> list[tuple[str, str]]:
    """Return language and text of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def files(text: str) -> dict[str, str]:
    """Return the files that a page shows: each fenced block after a line that names it."""
    named = r"^`([\w./]+)`:?\n\n```\w+\n(.*?)^```"
    return dict(re.findall(named, text, re.DOTALL | re.MULTILINE))


def without_code(text: str) -> str:
    """Return a page without its fenced and its indented blocks."""
    text = re.sub(r"^(```+|:::+).*?^\1\s*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<=\n\n)(?:(?:    .*)?\n)+", "\n", text)


def commands(text: str) -> list[str]:
    """Return a page's commands that start with fedsuite, continued ones whole."""
    whole = re.sub(r"\s*\\\n\s*", " ", text)
    fenced = [
        line
        for kind, body in blocks(whole)
        if kind == "console"
        for line in body.splitlines()
    ]
    indented = re.findall(r"^ {4,}(fedsuite .*)$", whole, flags=re.MULTILINE)
    return [line.strip() for line in (*fenced, *indented) if line.startswith("fedsuite ")]
