"""Pages of the site: links lead somewhere, commands parse, lines are short."""

import ast
import json
import re
import shlex
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import typer
from docutils.utils.math.latex2mathml import tex2mathml

from fedsuite.cli import app
from fedsuite.core.registry import METHODS
from fedsuite.experiment.key_catalog import known_keys
from tests.docs.pages import (
    DOCS,
    ROOT,
    blocks,
    commands,
    read_pages,
    without_code,
    written_pages,
)

LONGEST = 100
LINK = re.compile(r"\]\(([^)\s]+)\)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def targets(page: Path) -> list[str]:
    """Return the relative links of a page, and the entries of its tables of contents."""
    text = page.read_text()
    found = [link for link in LINK.findall(without_code(text)) if "://" not in link]
    for body in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        entries = [line for line in body.splitlines() if line and line[0] != ":"]
        found += [entry for entry in entries if "*" not in entry]
    return [link for link in found if not link.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    from repository_pages import anchor_of

    return {
        anchor_of(line.lstrip("#"))
        for line in page.read_text().splitlines()
        if line[:1] == "#"
    }


def goal_of(page: Path, link: str) -> Path | None:
    """Return the file that a link leads to; None if there is none."""
    from repository_pages import GENERATED, copied_pages

    path = (page.parent / link.partition("#")[0]).resolve()
    generated = DOCS / GENERATED
    if path.is_relative_to(generated):
        name = str(path.relative_to(generated)).removesuffix(".md")
        if name in [f"methods/{page}" for page in ("index", *METHODS)]:
            return path
        if name in ("keys", "results/board"):
            return path
        return next((p for p, at in copied_pages().items() if at == name), None)
    candidates = (
        path,
        path.with_name(f"{path.name}.md"),
        path.with_name(f"{path.name}.ipynb"),
    )
    return next((found for found in candidates if found.exists()), None)


def check_links_lead_somewhere(page: Path) -> None:
    for link in targets(page):
        anchor = link.partition("#")[2]
        goal = page if link.startswith("#") else goal_of(page, link)
        assert goal is not None, f"{named(page)} links to {link}, which is not there"
        if anchor and goal.suffix == ".md" and goal.exists():
            assert anchor in anchors(goal), (
                f"{named(page)} links to {link}: no such heading"
            )


def test_copies_of_pages_link_to_pages_that_the_site_has() -> None:
    from repository_pages import copied_pages, places

    for page in copied_pages():
        links = (link.partition("#")[0] for link in targets(page))
        for link in (link for link in links if link.endswith(".md")):
            goal = (page.parent / link).resolve()
            here = goal in places() or goal.is_relative_to(ROOT / "docs")
            assert here, f"{named(page)} links to {link}, which the site has not"


def check_a_long_page_begins_with_what_is_on_it(page: Path) -> None:
    """By their own table, or by one that the site makes; no part is left out of it."""
    from repository_pages import LONG, anchor_of, headings, with_contents

    text = page.read_text()
    parts = headings(text)
    if page == ROOT / "README.md" or len(text.splitlines()) <= LONG or not parts:
        return
    shown = without_code(with_contents(text))
    top = shown.partition("\n## ")[0]
    assert top.find("](#") < 3000, f"{named(page)}: its contents stand far below"
    for part in parts:
        assert f"](#{anchor_of(part)})" in top, f"{named(page)}: no link to {part!r}"


def leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words name, and the words after its name."""
    command = typer.main.get_command(app)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


def check_commands_parse(page: Path) -> None:
    for line in commands(page.read_text()):
        words = shlex.split(line.partition("  #")[0])[1:]
        if words[0].startswith("-"):
            continue
        command, rest = leaf(words)
        parser = command.make_parser(click.Context(command, **command.context_settings))
        parser.parse_args(args=list(rest))
        settings = re.findall(r"--(?:set|grid) ([a-z][a-z-]*)=", line)
        assert set(settings) <= set(known_keys()), f"{named(page)}: {line}"


def test_commands_that_texts_name_are_there() -> None:
    """In running text and comments too, but for the changelog, which names what went."""
    simulations = ROOT / "simulations"
    paths = {*read_pages(), *simulations.rglob("*.md"), *simulations.rglob("*.toml")}
    texts = [path.read_text() for path in paths if path.name != "CHANGELOG.md"]
    whole = "\n".join(texts)
    inline = r"`fedsuite ((?:(?:analyse|deploy) )?[a-z][a-z-]*)"
    for command in sorted(set(re.findall(inline, whole)) - {"analyse", "deploy"}):
        leaf(command.split())
    for module in sorted(set(re.findall(r"python -m (simulations(?:\.\w+)+)", whole))):
        assert find_spec(module), f"python -m {module}: there is no such module"


def check_python_parses(page: Path) -> None:
    for kind, text in blocks(page.read_text()):
        if kind == "python":
            ast.parse(text)


@pytest.mark.parametrize("page", read_pages(), ids=named)
def test_a_page_can_be_read_and_followed(page: Path) -> None:
    check_links_lead_somewhere(page)
    check_a_long_page_begins_with_what_is_on_it(page)
    check_commands_parse(page)
    check_python_parses(page)


@pytest.mark.parametrize("page", written_pages(), ids=named)
def test_lines_are_short(page: Path) -> None:
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        # A row of a table and a command each stand on one line.
        if not line.startswith(("|", "fedsuite ", "flwr ", "    ")):
            assert len(line) <= LONGEST, (
                f"{named(page)}, line {number}: {len(line)} columns"
            )


@pytest.mark.parametrize("page", written_pages("ipynb"), ids=named)
def test_notebooks_hold_no_output(page: Path) -> None:
    cells = json.loads(page.read_text())["cells"]
    assert cells
    for cell in cells:
        assert not cell.get("outputs"), f"{named(page)} holds outputs: the build makes them"
        assert all(len(line.rstrip()) <= LONGEST for line in cell["source"])


def test_nothing_is_installed_by_a_name_that_no_index_has() -> None:
    """Until fedsuite is published, what works is a clone's folder or a wheel's file."""
    programs = [
        path
        for folder in ("fedsuite", "simulations", "deploy", "benchmarks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".toml", ".yml", ".yaml", ".sh", ".env", ".service")
    ]
    assert len(programs) > 300
    for path in (*programs, *read_pages()):
        if path.name != "CHANGELOG.md":
            found = re.findall(
                r"pip install[^\n`]* ['\"]?fedsuite['\"`\s\[]", path.read_text()
            )
            assert not found, f"{named(path)}: {found}"


def test_the_wheel_that_pages_name_is_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = "".join(page.read_text() for page in read_pages())
    assert set(re.findall(r"fedsuite-([\d.]+)-py3", text)) == {version}


def test_every_page_is_in_a_table_of_contents() -> None:
    for page in written_pages():
        if page == DOCS / "index.md":
            continue
        above = page.parent if page.name != "index.md" else page.parents[1]
        contents = (above / "index.md").read_text()
        name = str(page.relative_to(above)).removesuffix(".md")
        assert name in contents or "\n*\n" in contents, f"{named(page)} is in no table"


def test_reference_names_exist() -> None:
    from reference_pages import MODULES

    for module, (_, names) in MODULES.items():
        for name in names:
            assert hasattr(import_module(module), name), f"{module}.{name}"


BLOCK = re.compile(r"^\$\$\n(.*?)^\$\$$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![$`\w])\$(?!\$)([^$\n]+)\$(?![$\w])")
ROLE = re.compile(r":math:`([^`]+)`")


def formulas() -> list[str]:
    """Return the formulas of the pages and of the docstrings."""
    pages = [without_code(page.read_text()) for page in written_pages()]
    found = [f for text in pages for kind in (BLOCK, INLINE) for f in kind.findall(text)]
    modules = [path.read_text() for path in (ROOT / "fedsuite").rglob("*.py")]
    return found + [f for text in modules for f in ROLE.findall(text)]


def test_a_browser_can_show_every_formula() -> None:
    """The site's converter has no command such as \\Big, and would end the build."""
    assert len(formulas()) > 20
    for formula in formulas():
        tex2mathml(" ".join(formula.split()), as_block=True)
