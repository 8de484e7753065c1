"""The boards as a heat map, methods by problems, from their committed tables."""

from collections import defaultdict
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import fmean

from repository_pages import BOARD

from fedsuite.core.registry import METHODS
from simulations.leaderboard.page import FINALS, read_table
from simulations.leaderboard.scores import Final

REFERENCES = ("fedavg", "fedavg-narrow", "fedavg-ft", "standalone", "standalone-adam")
"""What a method has to beat: FedAvg, fine-tuning, training alone."""

SCALE = 10.0
"""Points of difference that have the full colour."""

Means = Mapping[str, Mapping[str, float]]

_BEGINNING = """
# The boards at a glance

**Look for blue: there a method lies above FedAvg, fine-tuning and training alone.** Each
cell is the mean accuracy over clients and seeds in per cent. The colour is the difference
from the strongest of these references on the problem: blue is above it, orange below, and
{scale:.0f} points have the full colour. A click on a heading sorts.

A colour is no proof. The pages of the boards have intervals, placebos, worst clients and
costs.
"""


def means_of(folder: Path) -> dict[str, dict[str, float]]:
    """Return the mean accuracy over seeds, by problem and method, of a board's folder."""
    runs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    if (folder / FINALS).is_file():
        for final in read_table(folder / FINALS, Final):
            runs[final.problem][final.method].append(final.mean)
    return {p: {m: fmean(v) for m, v in rows.items()} for p, rows in runs.items()}


def reference_of(means: Mapping[str, float]) -> str | None:
    """Return the strongest reference of a problem; None where it has none."""
    there = [name for name in REFERENCES if name in means]
    return max(there, key=lambda name: means[name], default=None)


def write_board(path: Path) -> None:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rendered())


def rendered() -> str:
    """Return the page."""
    now, first = means_of(BOARD / "results"), means_of(BOARD / "first")
    return "\n".join(
        [
            _BEGINNING.strip().format(scale=SCALE),
            "",
            "## The board",
            "",
            "Its rules, intervals and costs: [Leaderboard](leaderboard.md).",
            "",
            heat_map(now),
            "",
            "## The first board",
            "",
            "Clients trained in few rounds there: do not choose by it.",
            "[Its tables](first_leaderboard.md) say more.",
            "",
            heat_map(first),
        ]
    )


def heat_map(means: Means) -> str:
    """Return a table of methods by problems, as HTML in a raw block."""
    names = sorted(
        {name for rows in means.values() for name in rows},
        key=lambda name: (-len([rows for rows in means.values() if name in rows]), name),
    )
    best = {problem: reference_of(rows) for problem, rows in means.items()}
    heads = "".join(f"<th>{escape(problem)}</th>" for problem in means)
    lines = [f"<thead><tr><th>method</th>{heads}</tr></thead><tbody>"]
    for name in names:
        cells = [_cell(means[p], name, best[p]) for p in means]
        lines.append(f"<tr><th>{_link(name)}</th>{''.join(cells)}</tr>")
    table = "\n".join(lines)
    return (
        "```{raw} html\n<div class='heat'><table class='sortable'>\n"
        f"{table}\n</tbody></table></div>\n```"
    )


def _link(name: str) -> str:
    if name not in METHODS.ours:
        return escape(name)
    return f"<a href='../methods/{escape(name)}.html'>{escape(name)}</a>"


def _cell(means: Mapping[str, float], name: str, reference: str | None) -> str:
    if name not in means:
        return "<td></td>"
    if reference is None:
        return f"<td>{means[name]:.1f}</td>"
    difference = means[name] - means[reference]
    share = min(abs(difference) / SCALE, 1.0)
    side = "above" if difference > 0 else "below"
    words = f"{difference:+.1f} from {reference}"
    mark = " class='reference'" if name == reference else f" class='{side}'"
    return (
        f"<td{mark} style='--share: {share:.2f}' title='{escape(words)}'>"
        f"{means[name]:.1f}</td>"
    )
