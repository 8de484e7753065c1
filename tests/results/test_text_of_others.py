"""Text of others: a terminal, a spreadsheet and a Markdown page show it, and do not act."""

import csv
import io
import re

import pytest

from fedsuite.core.errors import one_line, printable
from fedsuite.core.output import print_line
from fedsuite.results.compare import compare
from fedsuite.results.paired import tables, write
from fedsuite.results.tables import csv_table, markdown_table, markdown_text, print_table
from tests.results.made_runs import make_run

OWNED = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil"
FORMULA = "=cmd|' /C calc'!A0"
MARKDOWN = "x |\n\n# owned\n\n[a](javascript:b) ![i](http://evil/i.png) <script>c</script>"


@pytest.fixture
def comparison(tmp_path):
    for number, text in enumerate((OWNED, FORMULA, MARKDOWN)):
        keys = {"learning-rate": 0.1 + number, "method": text, text: text}
        make_run(tmp_path / f"{number}", experiment=keys)
    return compare(sorted(tmp_path.iterdir()))


def test_a_terminal_gets_no_control_characters(comparison, capsys):
    for table in tables(comparison):
        print_table(table)
    print_line(OWNED)
    printed = capsys.readouterr().out
    assert "owned" in printed
    assert all(letter.isprintable() or letter == "\n" for letter in printed)


def test_no_cell_is_a_formula(comparison, tmp_path):
    write(comparison, tmp_path)
    for path in tmp_path.glob("*.csv"):
        for line in csv.reader(io.StringIO(path.read_text())):
            assert not [cell for cell in line if cell.startswith(("=", "+", "@", "-"))]
    lines = [[FORMULA, "+1-cmd", "@a", "-2+3", "\t=1"], ["-1.5", "+2", "1e3", -4, None]]
    first, second = csv.reader(io.StringIO(csv_table(lines)))
    assert all(cell.startswith("'") for cell in first)
    assert second == ["-1.5", "+2", "1e3", "-4", ""]


def test_a_page_has_no_more_lines_links_and_columns_than_ours(comparison, tmp_path):
    write(comparison, tmp_path)
    page = (tmp_path / "comparison.md").read_text() + (
        tmp_path / "differences.md"
    ).read_text()
    assert "owned" in page
    assert not re.search(r"^#|<script|\]\(", page, re.MULTILINE)
    widths = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in page.splitlines()}
    # Of the tables alone: rows, keys that differ, differences; others have no bar.
    assert len(widths) <= 4
    assert all(letter.isprintable() or letter == "\n" for letter in page)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("a\\b", r"a\b"),
        ("[+1, 2] (3)", "[+1, 2] (3)"),
    ],
)
def test_a_bar_ends_no_cell(cell, shown):
    assert markdown_table([["h"], [cell]]).splitlines()[-1] == f"| {shown} |"


def test_texts():
    assert markdown_text("a\n<b>[c](d)") == r"a &lt;b>[c]\(d)"
    assert printable("a\x1bb\nc\ud800") == "a?b?c?"
    assert one_line("a\r\n b\u2028c") == "a b c"
