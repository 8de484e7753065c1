"""Runs method x aggregator x attack x seed on a data set, and prints the table of scores.

    python simulations/robustness/table.py digits run      # adds missing rows to the CSV
    python simulations/robustness/table.py digits table    # prints the CSV as tables

`fashion_mnist` is the other data set. The protocol stands in docs/how-to/robustness.md. A
row is written after each run, so an interrupted script goes on where it stopped.
"""

import csv
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment

HERE = Path(__file__).parent
COLUMNS = ("method", "aggregator", "mix", "attack", "seed", "accuracy", "worst10")
METHODS = ("fedavg", "fedeba")
RULES = (
    ("mean", "none"),
    ("median", "none"),
    ("trimmed-mean", "none"),
    ("geometric-median", "none"),
    ("multi-krum", "none"),
    ("multi-krum", "nearest"),
)
ATTACKS = ("none", "sign-flip", "scale", "alie", "ipm", "label-flip")
SEEDS = (1, 2, 3, 4, 5)

Point = tuple[str, str, str, str, int]


def points() -> Iterator[Point]:
    """Yield all points, seed by seed, so that a part is a whole table of fewer seeds."""
    for seed, method, (aggregator, mix), attack in itertools.product(
        SEEDS, METHODS, RULES, ATTACKS
    ):
        yield method, aggregator, mix, attack, seed


def rows_of(name: str) -> Path:
    """Return the CSV of a data set."""
    return HERE / "results" / f"{name}_by_seed.csv"


def scores(name: str, point: Point) -> tuple[float, float]:
    """Run a point; return the last mean accuracy over clients, and that of the worst."""
    values: dict[str, Any] = {**dict(zip(COLUMNS, point, strict=False)), "workers": 1}
    experiment = Experiment.load(HERE / f"{name}.toml", values)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run_local(experiment, Path(folder) / "run")
        last = (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()[-1]
    row = json.loads(last)
    return row["accuracy_mean"], row["accuracy_worst10"]


def read(name: str) -> dict[Point, float]:
    """Return the accuracy of each point in the CSV."""
    if not rows_of(name).exists():
        return {}
    with rows_of(name).open() as file:
        return {
            (r["method"], r["aggregator"], r["mix"], r["attack"], int(r["seed"])): float(
                r["accuracy"]
            )
            for r in csv.DictReader(file)
        }


def run(name: str) -> None:
    """Run what is missing."""
    known, rows = read(name), rows_of(name)
    if not known:
        rows.parent.mkdir(exist_ok=True)
        rows.write_text(",".join(COLUMNS) + "\n")
    for point in points():
        if point not in known:
            accuracy, worst = scores(name, point)
            with rows.open("a") as file:
                cells = (*point, f"{accuracy:.6f}", f"{worst:.6f}")
                file.write(",".join(map(str, cells)) + "\n")


def lines(name: str) -> Iterator[str]:
    """Yield one table a method: per cent, mean and standard deviation over the seeds."""
    known = read(name)
    for method in METHODS:
        yield from ("", f"| `{method}` | {' | '.join(ATTACKS)} |")
        yield "| --- |" + " ---: |" * len(ATTACKS)
        for aggregator, mix in RULES:
            cells = []
            for attack in ATTACKS:
                per_cent = [
                    100 * known[method, aggregator, mix, attack, seed]
                    for seed in SEEDS
                    if (method, aggregator, mix, attack, seed) in known
                ]
                spread = f" ± {stdev(per_cent):.1f}" if len(per_cent) > 1 else ""
                cells.append(f"{fmean(per_cent):.1f}{spread}" if per_cent else "-")
            rule = f"`{aggregator}`" + (f", mix `{mix}`" if mix != "none" else "")
            yield f"| {rule} | {' | '.join(cells)} |"


if __name__ == "__main__":
    data, action = sys.argv[1:]
    if action == "run":
        run(data)
    else:
        print("\n".join(lines(data)))
