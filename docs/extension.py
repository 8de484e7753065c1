"""What the site adds to Sphinx: generated pages, links into the repository, and MathML."""

from pathlib import Path
from typing import Any

from board_page import write_board
from diagrams import write_diagrams
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from key_page import write_keys
from method_pages import write_methods
from partition_pictures import write_partitions
from reference_pages import write_reference
from repository_pages import GENERATED, relinked, with_contents, write_pages
from restructured import plain_line
from sphinx.application import Sphinx


def generate(app: Sphinx, config: Any) -> None:
    """Write the pages that are made from the repository, before Sphinx looks for pages."""
    folder = Path(app.srcdir) / GENERATED
    write_pages(folder)
    write_reference(folder / "reference")
    write_methods(folder / "methods")
    write_diagrams(folder / "diagrams")
    write_keys(folder / "keys.md")
    write_board(folder / "results" / "board.md")
    write_partitions(folder / "partitions")
    pages = sorted((folder / "reference").glob("*.md"))
    config.autosummary_generate = [str(page) for page in pages]


def relink(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links into the repository lead to their pages, and give long pages contents."""
    path = Path(app.env.doc2path(docname))
    if path.suffix == ".md" and GENERATED not in path.parts:
        source[0] = with_contents(relinked(source[0], path, path))


def _plain(
    app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """Escape a docstring's lines in place, as autodoc's event wants it."""
    lines[:] = map(plain_line, lines)


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
    app.connect("autodoc-process-docstring", _plain, priority=900)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": False}
