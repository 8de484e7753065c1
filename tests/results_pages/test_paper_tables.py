"""What of each paper was run: all tables and figures are named, each state has a file."""

import re
import shlex

import pytest

from fedsuite.experiment.experiment import Experiment, parse_assignment
from fedsuite.sweeps.points import make_points
from fedsuite.sweeps.sweep import base_values
from tests.results_pages.recomputed import SIMULATIONS
from tests.test_simulations import build, options

HEADING = "The paper's tables and figures"
PAPERS = {"fedal": (9, 11), "fedeba": (24, 15), "decomposition": (3, 3), "fedakd": (7, 4)}
"""Number of tables and of figures in each paper."""

ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9}

WORDS = ("run at its size", "run reduced", "queued", "not run, because")


def section(paper: str) -> str:
    page = (SIMULATIONS / paper / "README.md").read_text()
    return page.split(f"## {HEADING}\n")[1].split("\n## ")[0]


def rows(paper: str) -> list[list[str]]:
    """Return name, content and state of each row, without the table's head."""
    lines = [line for line in section(paper).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def items(text: str) -> set[tuple[str, int]]:
    """Return what a text names: ``Tables 4 and 5, Fig. 2a`` is three items."""
    number = r"(?:[IVX]+|\d+)[a-f]?"
    found = set()
    for kind, numbers in re.findall(
        rf"(Table|Fig)s?\.? ({number}(?:(?:, | and | to ){number})*)",
        " ".join(text.split()),
    ):
        last = None
        for join, name in re.findall(rf"(, | and | to |^)({number})", numbers):
            value = ROMAN.get(name) or int(name.rstrip("abcdef"))
            first = last + 1 if join == " to " and last else value
            found |= {(kind, i) for i in range(first, value + 1)}
            last = value
    return found


def all_items(paper: str) -> set[tuple[str, int]]:
    tables, figures = PAPERS[paper]
    named = {("Table", i) for i in range(1, tables + 1)}
    return named | {("Fig", i) for i in range(1, figures + 1)}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_is_named(paper: str) -> None:
    without_results = section(paper).split("\n\n|")[0]
    in_rows = items(" ".join(name for name, *_ in rows(paper)))
    assert not in_rows & items(without_results)
    assert in_rows | items(without_results) == all_items(paper)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_state_has_a_file_behind_it(paper: str) -> None:
    for name, _, state in rows(paper):
        assert state.startswith(WORDS), name
        links = re.findall(r"\]\(([^)]+)\)", state)
        assert all((SIMULATIONS / paper / link).is_file() for link in links), name
        if state.startswith("run"):
            assert any(link.endswith((".csv", ".toml")) for link in links), name
        if "queued" in state:
            assert "protocol.md" in links, name
            protocol = (SIMULATIONS / paper / "protocol.md").read_text()
            assert items(name) <= items(protocol), name
        else:
            assert "protocol.md" not in links, name


def sweeps(paper: str) -> list[list[str]]:
    """Return the words of each sweep of a protocol, with its shell variables' values."""
    text = (SIMULATIONS / paper / "protocol.md").read_text()
    values: dict[str, str] = {}
    found = []
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if assigned := re.fullmatch(r" {4}(\w+)=(.*)", line):
            values[assigned[1]] = filled(assigned[2].strip('"'), values)
        elif line.startswith("    fedsuite sweep "):
            found.append(shlex.split(filled(line, values)))
    return found


def filled(line: str, values: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: values.get(name[1], name[0]), line)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_protocol_can_be_run(paper: str) -> None:
    outputs = []
    for words in sweeps(paper):
        given = dict(parse_assignment(text) for text in options(words, "--set"))
        base = base_values(SIMULATIONS.parent / words[2], given)
        points = make_points(base, list(options(words, "--grid")), range(1))
        for point in points:
            settings = dict(point.settings)
            values = {**base, **settings}
            # Public rows are made, so fewer of them will do.
            few = {"public-size": min(int(values.get("public-size", 0)), 100)}
            build(Experiment.from_values({**values, **few}, tuple(settings)))
        outputs.extend(options(words, "--output"))
        assert "fresh-test-split=true" in words, words
        assert {*options(words, "--seeds")} <= {"2", "5"}
    assert len(outputs) == len(set(outputs)) == len(sweeps(paper)) > 0
    assert all(output.startswith(f"$OUT/{paper}/") for output in outputs)
