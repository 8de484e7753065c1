"""Mean accuracy against collaborative fairness: FedAKD's settings among its rivals.

    python simulations/fedakd/frontier.py PROBLEM ALONE RUN ...  # writes results/frontier_*
    python simulations/fedakd/frontier.py                        # draws frontier.png

PROBLEM is specialties, scored on own test rows, or digits, scored on the whole test part.
ALONE is the folder of a sweep of Standalone at its best rate, the others are folders of
runs (amendment 11 of README.md has the sweeps). Last round. A method that only has a shared
model is scored with what local training left of it. The picture is of the specialties.
"""

import csv
import sys
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt

from fedsuite.core.metrics import collaborative_fairness
from fedsuite.results.reader import Run, load_run

HERE = Path(__file__).parent
SCORES = {"specialties": "accuracy", "digits": "whole_test_accuracy"}
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


def table_of(problem: str) -> Path:
    """Return the file of a problem's table."""
    return HERE / "results" / f"frontier_{problem}_by_seed.csv"


def accuracies_of(run: Run, score: str) -> list[float]:
    """Return each client's score with the model that it has at the end, by client."""
    shared = run.experiment["method"] in SHARED
    phase, column = ("train", f"trained_{score}") if shared else ("evaluate", score)
    history = run.client_history(phase, column)
    last = max(history)
    return [history[last][client] for client in sorted(history[last])]


def collect(problem: str, alone: Path, runs: list[Path]) -> None:
    """Write a problem's table from the folders of runs."""
    score = SCORES[problem]
    own = {run.experiment["seed"]: run for run in map(load_run, finished(alone))}
    lines = []
    for run in map(load_run, [*finished(alone), *(p for f in runs for p in finished(f))]):
        together, seed = accuracies_of(run, score), run.experiment["seed"]
        fairness = collaborative_fairness(accuracies_of(own[seed], score), together)
        # Clients that all score alike have no order, so no correlation.
        fairness = 0.0 if fairness is None else fairness
        lines.append((arm_of(run), seed, f"{100 * fmean(together):.4f}", f"{fairness:.4f}"))
    with table_of(problem).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("arm", "seed", "mean", "cf"))
        writer.writerows(sorted(lines))


def finished(folder: Path) -> list[Path]:
    """Return the finished runs at or below a folder."""
    return sorted(path.parent for path in folder.rglob("summary.json"))


def read(problem: str) -> dict[str, dict[int, tuple[float, float]]]:
    """Return mean and fairness by arm and seed."""
    by_arm: dict[str, dict[int, tuple[float, float]]] = {}
    with table_of(problem).open(newline="") as file:
        for line in csv.DictReader(file):
            point = float(line["mean"]), float(line["cf"])
            by_arm.setdefault(line["arm"], {})[int(line["seed"])] = point
    return by_arm


def means(problem: str) -> dict[str, tuple[float, float]]:
    """Return mean and fairness of each arm, over seeds."""
    return {
        arm: (fmean(p[0] for p in points.values()), fmean(p[1] for p in points.values()))
        for arm, points in read(problem).items()
    }


def baseline_of(arm: str) -> str:
    """Return FedAvg with as many passes over the rows: FedAKD trains two models."""
    if arm.startswith("fedakd") and "2 epochs" in arm:
        return "fedavg 4 epochs"
    return "fedavg 2 epochs 40 rounds" if "40 rounds" in arm else "fedavg 2 epochs"


def minus_baseline(problem: str, arm: str) -> tuple[list[float], list[float]]:
    """Return the arm's mean and fairness minus its baseline's, seed by seed."""
    by_arm = read(problem)
    pairs = [(by_arm[arm][seed], other) for seed, other in by_arm[baseline_of(arm)].items()]
    return [a[0] - b[0] for a, b in pairs], [a[1] - b[1] for a, b in pairs]


def dominated(points: dict[str, tuple[float, float]]) -> set[str]:
    """Return the arms that another one exceeds in both."""
    return {
        arm
        for arm, (mean, fairness) in points.items()
        if any(m > mean and f > fairness for m, f in points.values())
    }


def draw(target: Path) -> None:
    """Draw each arm as a point, and the frontier as a line."""
    points = means("specialties")
    behind = dominated(points)
    figure, axes = plt.subplots(figsize=(10, 5.5), layout="constrained")
    names = []
    for number, arm in enumerate(sorted(points, key=lambda arm: -points[arm][0]), 1):
        mean, fairness = points[arm]
        colour = "#1b9e77" if arm.startswith("fedakd") else "#7570b3"
        face = "none" if arm in behind else colour
        axes.scatter(fairness, mean, s=40, facecolors=face, edgecolors=colour)
        # Neighbours in the list often lie side by side: their numbers go to two sides.
        side = (6, -3) if number % 2 else (-15, -3)
        axes.annotate(f"{number}", (fairness, mean), side, textcoords="offset points")
        names.append(f"{number:2}  {arm}")
    axes.text(1.02, 1.0, "\n".join(names), va="top", transform=axes.transAxes)
    front = sorted((f, m) for arm, (m, f) in points.items() if arm not in behind)
    axes.plot(*zip(*front, strict=True), color="0.7", zorder=0)
    axes.set_xlabel("collaborative fairness (100 is Standalone's order)")
    axes.set_ylabel("mean accuracy over clients, own test rows (%)")
    axes.set_title("Filled: no other arm has more of both. Means over five seeds.")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        collect(sys.argv[1], Path(sys.argv[2]), [Path(word) for word in sys.argv[3:]])
    draw(HERE / "frontier.png")
