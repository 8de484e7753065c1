"""Counts what the board called different, at each of its commits, by both of its rules.

    python simulations/leaderboard/history.py      # in a clone with its history

Reads `results/finals.csv` and the page at each commit. Which baseline a row has stands on
the page, in its column `model`. The table that this prints is that of history.md.
"""

import csv
import re
import subprocess
from collections.abc import Iterator
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

COMMITS = {
    "hospitals": ("3638753", "d367000", "1863589", "c401db5"),
    "digits": ("4e03418", "d367000", "bc6317c", "c401db5"),
}
TITLES = {"hospitals": "Heart disease in four hospitals", "digits": "Handwritten digits"}
RESULTS = "simulations/leaderboard/results"
Seeds = dict[int, float]


def shown(commit: str, file: str) -> str:
    """Return a file of the results as it was."""
    command = ["git", "show", f"{commit}:{RESULTS}/{file}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def accuracies(commit: str, problem: str) -> dict[str, Seeds]:
    """Return the accuracies of a problem's rows by seed."""
    found: dict[str, Seeds] = {}
    for row in csv.DictReader(shown(commit, "finals.csv").splitlines()):
        if row["problem"] == problem:
            found.setdefault(row["method"], {})[int(row["seed"])] = float(row["mean"])
    return found


def differences(commit: str, problem: str) -> dict[str, NDArray[np.float64]]:
    """Return each row's accuracy minus its baseline's, by seed."""
    scores = accuracies(commit, problem)
    section = shown(commit, "README.md").split(f"\n## {TITLES[problem]}")[1]
    kinds = re.findall(r"\n\| ([\w-]+) \| (own|shared) \|", section.split("\n## ")[0])
    found = {}
    for method, kind in dict(kinds).items():
        baseline = "fedavg" if kind == "shared" else "fedavg-ft"
        if method != baseline:
            pairs = [(scores[method][s], scores[baseline][s]) for s in scores[baseline]]
            found[method] = np.array([own - other for own, other in pairs])
    return found


def adjusted(values: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return Holm's adjusted p-values of paired t tests."""
    raw = {name: float(stats.ttest_1samp(v, 0.0).pvalue) for name, v in values.items()}
    highest, found = 0.0, {}
    for place, name in enumerate(sorted(raw, key=raw.__getitem__)):
        highest = max(highest, min(1.0, (len(raw) - place) * raw[name]))
        found[name] = highest
    return found


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % t interval of the mean."""
    count = len(values)
    half = stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5
    return float(values.mean() - half), float(values.mean() + half)


def called(commit: str, problem: str) -> tuple[int, float, list[str], float, list[str]]:
    """Return the rows, and by each rule the floor and which of them it calls different."""
    values = differences(commit, problem)
    p = adjusted(values)
    largest = float(np.abs(values["placebo"]).max())
    far_end = max(map(abs, interval(values["placebo"])))
    first, amended = [], []
    for name, v in values.items():
        low, high = interval(v)
        if name == "placebo" or p[name] >= 0.05 or abs(fmean(v)) <= 0.5:
            continue
        first += [name] * (abs(fmean(v)) > largest)
        amended += [name] * (low > far_end or high < -far_end)
    return len(values), largest, first, far_end, amended


def lines() -> Iterator[str]:
    """Yield the table."""
    rules = "floor, first rule | different | floor, amendment 1 | different"
    yield f"| problem | commit | rows | {rules} |"
    yield "| --- | --- | ---: | ---: | --- | ---: | --- |"
    for problem, commits in COMMITS.items():
        for commit in commits:
            rows, largest, first, far_end, amended = called(commit, problem)
            cells = (f"{largest:.2f}", named(first), f"{far_end:.2f}", named(amended))
            yield f"| {problem} | {commit} | {rows} | {' | '.join(cells)} |"


def named(methods: list[str]) -> str:
    """Return the number of methods, and their names."""
    return f"{len(methods)}" + (f": {', '.join(methods)}" if methods else "")


if __name__ == "__main__":
    print("\n".join(lines()))
