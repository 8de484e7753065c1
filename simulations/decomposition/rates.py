"""Each arm at its best learning rate, and personal atoms: CSVs from the folders of runs.

    python simulations/decomposition/rates.py rates FOLDER ...      # amendment 6, part 1
    python simulations/decomposition/rates.py personal FOLDER ...   # amendment 6, part 3

FOLDER holds finished runs (README.md has the sweeps). `rates` takes the mean of the last
three evaluations, `personal` the last one. Validation rows choose, test rows compare.
"""

import csv
import sys
from pathlib import Path
from statistics import fmean

from fedsuite.results.reader import Run, load_run

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("arm", "learning_rate", "seed", "validation", "mean", "worst_10")


def arm_of(run: Run) -> str:
    """Return the method, and how its convolutions are held."""
    values = run.experiment
    if values["method"] == "fedprox":
        return "placebo"
    if not values["decomposition"]:
        return str(values["method"]) if values["method"] != "fedavg" else "dense"
    return f"{values['atoms']} personal atoms" if values["personal-atoms"] else "factored"


def scores_of(run: Run, evaluations: int) -> list[str]:
    """Return validation mean, test mean and test mean of the worst tenth, in per cent."""
    names = ("validation_accuracy_mean", "accuracy_mean", "accuracy_worst10")
    rows = [row for row in run.rounds if "accuracy_mean" in row][-evaluations:]
    known = [name in rows[-1] for name in names]
    means = [fmean(row.get(name, 0.0) for row in rows) for name in names]
    return [
        f"{100 * x:.4f}" if there else "" for x, there in zip(means, known, strict=True)
    ]


def collect(table: Path, evaluations: int, folders: list[Path]) -> None:
    """Write a table of the finished runs below the folders."""
    runs = [load_run(path.parent) for f in folders for path in f.rglob("summary.json")]
    lines = []
    for run in runs:
        rate, seed = run.experiment["learning-rate"], run.experiment["seed"]
        lines.append((arm_of(run), rate, seed, *scores_of(run, evaluations)))
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(lines))


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    last = {"rates": 3, "personal": 1}[part]
    collect(RESULTS / f"{part}_by_seed.csv", last, [Path(folder) for folder in rest])
