"""What the site adds to Sphinx: generated pages, links into the repository, and MathML."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from reference_pages import write_reference
from repository_pages import GENERATED, relinked, write_pages
from sphinx.application import Sphinx


def generate(app: Sphinx, config: Any) -> None:
    """Write the pages that are made from the repository, before Sphinx looks for pages."""
    folder = Path(app.srcdir) / GENERATED
    write_pages(folder)
    write_reference(folder / "reference")
    pages = sorted((folder / "reference").glob("*.md"))
    config.autosummary_generate = [str(page) for page in pages]


def relink(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to files of the repository lead to their pages on the site."""
    path = Path(app.env.doc2path(docname))
    if path.suffix == ".md" and GENERATED not in path.parts:
        source[0] = relinked(source[0], path, path)


_LITERAL = re.compile(r"(``.+?``|:\w+:`[^`]+`)")


def plain_docstring(
    app: Sphinx, what: str, name: str, thing: object, options: Any, lines: Sequence[str]
) -> None:
    """Escape what docstrings mean literally and reST would read as markup."""
    for number, line in enumerate(lines):
        parts = _LITERAL.split(line)
        parts[::2] = [_escaped(part) for part in parts[::2]]
        lines[number] = "".join(parts)  # type: ignore[index]


def _escaped(text: str) -> str:
    if re.fullmatch(r"\s*(\*|\*\*)?\w*", text) and not text.strip(" *"):
        return text
    bullet = re.match(r"\s*\* ", text)
    start = bullet.end() if bullet else 0
    rest = re.sub(r"(?<!\\)([*|])", r"\\\1", text[start:])
    return text[:start] + re.sub(r"(?<=\w)_(?!\w)", r"\\_", rest)


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f"<div class='math'>{tex2mathml(node.astext(), as_block=True)}</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parts."""
    app.connect("config-inited", generate)
    app.connect("source-read", relink)
    app.connect("autodoc-process-docstring", plain_docstring, priority=900)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": False}
