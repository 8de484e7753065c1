"""What one dishonest client can do to a method: as measured, and in the guide's words."""

import csv
import re
from functools import cache
from pathlib import Path

from repository_pages import ROOT

SEARCH = ROOT / "simulations" / "liars" / "results" / "after.csv"
MENDS = SEARCH.with_name("mends_after.csv")
GUIDE = ROOT / "docs" / "how-to" / "dishonest_clients.md"

_SECTION = "## Distillation and rewards\n"
_NAME = re.compile(r"`([\w-]+)`")


def one_liar(method: str) -> str:
    """Return what one liar of five can do to a method; empty if nobody has looked."""
    parts = [*_in_words(method), *_searched(method)]
    if not parts:
        return ""
    return "\n\n".join([*parts, _MORE.strip(), ""])


def _searched(method: str) -> list[str]:
    """Return the worst that the search found in the method, in a sentence or three."""
    rows = [row for row in _rows_of(SEARCH) if row["method"] == method]
    if not rows:
        return []
    shares = [float(row["share"]) for row in rows if row["share"]]
    worst = max(rows, key=lambda row: float(row["lost"]))
    lost = float(worst["lost"])
    said = f"A search of {len(rows)} lies found none worse than these."
    if shares:
        said += f" A liar owned at most {max(shares):.2f} of the model."
    said += (
        f" The others lost at most {lost:.1f} points of accuracy against a liar that is "
        f"absent, by `{worst['lie']}` ({worst['setting']})."
    )
    rules = [row for row in _rows_of(MENDS) if row["method"] == method]
    best = min(rules, key=lambda row: float(row["lost"]), default=None)
    if best is not None and best["aggregator"] != "mean":
        said += (
            f' With `aggregator = "{best["aggregator"]}"` they lost '
            f"{float(best['lost']):.1f}."
        )
    return [said]


@cache
def _rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV; none of one that is not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _in_words(method: str) -> list[str]:
    """Return what the guide says of the method: its row of shares, and its bullets."""
    text = GUIDE.read_text().partition(_SECTION)[2].partition("\n## ")[0]
    said = []
    for line in text.splitlines():
        head, _, tail = line.removeprefix("| ").partition(" | ")
        if line.startswith("| `") and method in _NAME.findall(head):
            honest, _, loud, most = (cell.strip(" |") for cell in tail.split(" | "))
            said.append(
                "What one liar of five makes of what clients get: "
                f"{honest} if its answer is as long as the others', "
                f"{loud} if it is a million times as long, {most} at most."
            )
    for bullet in re.split(r"\n- ", text)[1:]:
        head, _, words = " ".join(bullet.split()).partition(": ")
        if method in _NAME.findall(head):
            said.append(words[:1].upper() + words[1:])
    return said


_MORE = """
Small problems, the defaults: [the search](../../how-to/dishonest_clients.md), and
[what is bounded](../../how-to/robustness.md).
"""
