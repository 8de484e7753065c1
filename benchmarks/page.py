"""Writes the tables and the picture of ``README.md`` from the files in ``results``.

    python benchmarks/page.py

Each table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, NAME being that of a
file. ``speed.py`` writes runs, of which the tables are made here; the other scripts write
their table with the results. No figure is typed by hand.
"""

import json
import re
import statistics
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from measuring.arms import BENCHMARKS
from measuring.plots import plot_glance
from measuring.tables import (
    ArmRun,
    by_arm,
    markdown,
    second_core_table,
    speed_table,
    work_table,
)

CASES = ("f1", "f2", "f3", "f4", "f5", "blazefl", "blazefl_resnet")
OTHERS = ("noop", "startup", "memory", "million", "apfl")
SIMULATED = ("f1", "f2", "f5")
"""Cases of ``results/simulate_CASE.json``, in which ``fedsuite simulate`` was measured."""

GLANCE = (
    "local",
    "local-2",
    "ray",
    "flower",
    "pfl",
    "blazefl-thread",
    "blazefl-process",
)
"""Arms of the table and the picture that show all cases."""

PAGE = BENCHMARKS / "README.md"
ALL = ("f1", "f2", "f3", "f4", "f5")


class Target(NamedTuple):
    """A ratio of two arms that is to be at most so large.

    Parameters
    ----------
    words
        What is set against what.
    cases
        Where it is to hold.
    arm, base, measure
        Which arms, and which of a run's figures.
    most
        The limit.
    """

    words: str
    cases: tuple[str, ...]
    arm: str
    base: str
    measure: str
    most: float


TARGETS = (
    Target("a round over the floor's", ("f1",), "local", "floor", "seconds", 1.5),
    Target("a round over the floor's", ALL[1:], "local", "floor", "seconds", 1.05),
    Target("a round over pfl's", ALL, "local", "pfl", "seconds", 1.0),
    Target("a round of two workers over pfl's", ALL, "local-2", "pfl", "seconds", 1.0),
    Target("a whole run over the floor's", ALL, "local", "floor", "wall", 1.2),
    Target(
        "two workers' round over one's", ("f3", "f4"), "local-2", "local", "seconds", 0.556
    ),
    Target("Ray's processor seconds over ours", ("f1",), "ray", "local", "cpu", 2.0),
)


def read(name: str) -> dict[str, Any]:
    """Return a file of results; empty where nothing was measured."""
    path = BENCHMARKS / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def where(facts: Mapping[str, Any]) -> str:
    """Return when, where and on what commit something was measured, in a line."""
    return (
        f"{facts['date'][:10]}, commit {facts['commit']}, {facts['cores']} cores of "
        f"{facts['processor']}, torch {facts['torch']}, flwr {facts['flwr']}"
    )


def over_floor(runs: list[ArmRun]) -> dict[str, float]:
    """Return seconds of a round over the floor's, by arm: the ratio of the medians."""
    floor = middle(runs, "floor", "seconds")
    return {arm: middle(runs, arm, "seconds") / floor for arm in by_arm(runs)}


def note(words: str) -> str:
    """Return the line below a table, wrapped as the page is."""
    return textwrap.fill(f"*{words}.*", 100, break_on_hyphens=False)


def middle(runs: list[ArmRun], arm: str, measure: str) -> float:
    """Return the median of an arm's figure."""
    return statistics.median(getattr(r, measure) for r in runs if r.arm == arm)


def targets_table(runs: Mapping[str, list[ArmRun]]) -> str:
    """Return what was aimed at and what was found, by the medians."""
    rows = []
    for target in TARGETS:
        cells = []
        for case in filter(runs.__contains__, target.cases):
            arm, base = (middle(runs[case], a, target.measure) for a in target[2:4])
            met = arm / base <= target.most
            ratio = f"{case.upper()} {arm / base:.2f}"
            cells.append(ratio if met else f"**{ratio}, missed**")
        rows.append((target.words, f"{target.most:g}", ", ".join(cells)))
    return markdown(("target", "at most", "found"), rows)


def case_table(results: Mapping[str, Any]) -> str:
    """Return what there is to show of a case."""
    runs = [ArmRun.of(row) for row in results["runs"]]
    parts = [speed_table(runs, "floor"), second_core_table(runs)]
    if results["work"]:
        parts.append(work_table(runs, results["work"], "local"))
    repeats = max(map(len, by_arm(runs).values()))
    rounds_and_repeats = f"{results['settings']['num-rounds']} rounds, {repeats} repeats; "
    return "\n\n".join(
        [*filter(None, parts), note(f"{rounds_and_repeats}{where(results['facts'])}")]
    )


def simulate_table() -> str:
    """Return what a round of an unchanged app takes, beside a loop with its code."""
    header = ("case", "hand-loop, s", "simulate, s", "flower, s")
    over = ("simulate / hand-loop", "in CPU s", "flower / simulate")
    rows, notes = [], []
    for case in SIMULATED:
        if not (results := read(f"simulate_{case}")):
            continue
        runs = [ArmRun.of(row) for row in results["runs"]]
        loop, ours = (middle(runs, arm, "seconds") for arm in ("hand-loop", "simulate"))
        cpu = middle(runs, "simulate", "cpu") / middle(runs, "hand-loop", "cpu")
        with_flower = any(run.arm == "flower" for run in runs)
        theirs = middle(runs, "flower", "seconds") if with_flower else 0.0
        seconds = (f"{value:.4f}" if value else "-" for value in (loop, ours, theirs))
        ratios = (
            f"{value:.2f}" if value else "-" for value in (ours / loop, cpu, theirs / ours)
        )
        rows.append((case, *seconds, *ratios))
        repeats = max(map(len, by_arm(runs).values()))
        rounds = results["settings"]["num-rounds"]
        notes.append(
            f"{case}: {rounds} rounds, {repeats} repeats, {where(results['facts'])}"
        )
    table = markdown((*header, *over), rows)
    return f"{table}\n\n{note('; '.join(notes))}"


def glance_table(ratios: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table of all cases, seconds of a round over the floor's."""
    rows = [
        (case, *(f"{arm_ratios[arm]:.2f}" if arm in arm_ratios else "-" for arm in GLANCE))
        for case, arm_ratios in ratios.items()
    ]
    return markdown(("case", *GLANCE), rows)


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with its tables replaced.

    Raises
    ------
    SystemExit
        If the page has no place for a table, or has a place for none.
    """
    places = re.findall(r"^<!-- (\w+) -->$", text, re.MULTILINE)
    if odd := set(places) ^ set(tables):
        raise SystemExit(f"README.md and the results disagree on: {', '.join(sorted(odd))}")
    for name, table in tables.items():
        head, _, rest = text.partition(f"<!-- {name} -->\n")
        tail = rest.partition(f"<!-- /{name} -->")[2]
        text = f"{head}<!-- {name} -->\n\n{table}\n\n<!-- /{name} -->{tail}"
    return text


def measured() -> dict[str, list[ArmRun]]:
    """Return the runs of each case that was measured."""
    by_case = {name: read(name) for name in CASES}
    return {n: [ArmRun.of(row) for row in f["runs"]] for n, f in by_case.items() if f}


def all_ratios() -> dict[str, dict[str, float]]:
    """Return seconds of a round over the floor's, by case and arm."""
    return {n.replace("_", " "): over_floor(runs) for n, runs in measured().items()}


def all_tables() -> dict[str, str]:
    """Return the page's tables by name."""
    tables = {name: case_table(read(name)) for name in measured()}
    for name in OTHERS:
        if results := read(name):
            tables[name] = f"{results['table']}\n\n{note(where(results['where']))}"
    tables["simulate"] = simulate_table()
    tables["targets"] = targets_table(measured())
    tables["glance"] = glance_table(all_ratios())
    return tables


def main() -> None:
    """Write the page and the picture."""
    shown = {
        case: {arm: arm_ratios[arm] for arm in GLANCE if arm in arm_ratios}
        for case, arm_ratios in all_ratios().items()
    }
    plot_glance(shown, BENCHMARKS / "results" / "glance.png")
    PAGE.write_text(filled(PAGE.read_text("utf-8"), all_tables()), "utf-8")


if __name__ == "__main__":
    main()
