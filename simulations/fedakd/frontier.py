"""Mean accuracy against collaborative fairness: FedAKD's settings among its rivals.

    python simulations/fedakd/frontier.py ALONE RUN ...   # writes the table in results/
    python simulations/fedakd/frontier.py                 # draws frontier.png from it

ALONE is the folder of a sweep of Standalone at its best rate, the others are folders of
runs (amendment 11 of README.md has the sweeps). Own test rows, last round. A method that
only has a shared model is scored with what local training left of it.
"""

import csv
import sys
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt

from fedsuite.core.metrics import collaborative_fairness
from fedsuite.results.reader import Run, load_run

HERE = Path(__file__).parent
TABLE = HERE / "results" / "frontier_by_seed.csv"
SHARED = ("fedavg", "fedprox")


def arm_of(run: Run) -> str:
    """Return the method and what sets it apart."""
    values = run.experiment
    words = ["placebo" if values["method"] == "fedprox" else str(values["method"])]
    if values["method"] == "fedakd":
        weights = ("global-to-local-weight", "local-to-global-weight")
        words += [f"{values[weight]:g}" for weight in weights]
        words += ["code order"] if values["fedakd-order"] == "code" else []
    if values["local-epochs"] != 1:
        words.append(f"{values['local-epochs']} epochs")
    if values["num-rounds"] != 20:
        words.append(f"{values['num-rounds']} rounds")
    return " ".join(words)


def accuracies_of(run: Run) -> list[float]:
    """Return each client's accuracy with the model that it has at the end, by client."""
    shared = run.experiment["method"] in SHARED
    phase, column = ("train", "trained_accuracy") if shared else ("evaluate", "accuracy")
    history = run.client_history(phase, column)
    last = max(history)
    return [history[last][client] for client in sorted(history[last])]


def collect(alone: Path, runs: list[Path]) -> None:
    """Write the table from the folders of runs."""
    own = {run.experiment["seed"]: run for run in map(load_run, finished(alone))}
    lines = []
    for run in map(load_run, [*finished(alone), *(p for f in runs for p in finished(f))]):
        together, seed = accuracies_of(run), run.experiment["seed"]
        fairness = collaborative_fairness(accuracies_of(own[seed]), together)
        lines.append((arm_of(run), seed, f"{100 * fmean(together):.4f}", f"{fairness:.4f}"))
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("arm", "seed", "mean", "cf"))
        writer.writerows(sorted(lines))


def finished(folder: Path) -> list[Path]:
    """Return the finished runs at or below a folder."""
    return sorted(path.parent for path in folder.rglob("summary.json"))


def read() -> dict[str, dict[int, tuple[float, float]]]:
    """Return mean and fairness by arm and seed."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    with TABLE.open(newline="") as file:
        for line in csv.DictReader(file):
            point = float(line["mean"]), float(line["cf"])
            found.setdefault(line["arm"], {})[int(line["seed"])] = point
    return found


def means() -> dict[str, tuple[float, float]]:
    """Return mean and fairness of each arm, over seeds."""
    return {
        arm: (fmean(p[0] for p in points.values()), fmean(p[1] for p in points.values()))
        for arm, points in read().items()
    }


def dominated(points: dict[str, tuple[float, float]]) -> set[str]:
    """Return the arms that another one exceeds in both."""
    return {
        arm
        for arm, (mean, fairness) in points.items()
        if any(m > mean and f > fairness for m, f in points.values())
    }


def draw(target: Path) -> None:
    """Draw each arm as a point, and the frontier as a line."""
    points = means()
    behind = dominated(points)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for arm, (mean, fairness) in points.items():
        colour = "#1b9e77" if arm.startswith("fedakd") else "#7570b3"
        face = "none" if arm in behind else colour
        axes.scatter(fairness, mean, s=40, facecolors=face, edgecolors=colour)
        offset = {"xytext": (5, 3), "textcoords": "offset points", "fontsize": 8}
        axes.annotate(arm, (fairness, mean), **offset)
    front = sorted((f, m) for arm, (m, f) in points.items() if arm not in behind)
    axes.plot(*zip(*front, strict=True), color="0.7", zorder=0)
    axes.set_xlabel("collaborative fairness (100 is Standalone's order)")
    axes.set_ylabel("mean accuracy over clients, own test rows (%)")
    axes.set_title("Filled: no other arm has more of both. Means over five seeds.")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        collect(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
    draw(HERE / "frontier.png")
