"""Draws figure.png of this folder's README from the CSVs in results/.

python simulations/fedeba/figure.py
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

HERE = Path(__file__).parent
ARMS = {
    "FedAvg": ("fedavg, learning-rate=0.1, server-learning-rate=1.0", "#000000"),
    "FedAvg, 6 times its length": (
        "fedavg, learning-rate=0.1, server-learning-rate=6.0",
        "#999999",
    ),
    "FedEBA+ as printed": (
        "fedeba-plus, learning-rate=0.1, server-learning-rate=1.0, temperature=0.1",
        "#D55E00",
    ),
    "FedEBA+, weights nearly equal": (
        "fedeba-plus, learning-rate=0.1, server-learning-rate=1.0, temperature=10.0",
        "#CC79A7",
    ),
    "FedEBA+, a sixth of the length": (
        "fedeba-plus, learning-rate=0.1, server-learning-rate=0.166667, temperature=0.1",
        "#0072B2",
    ),
    "FedEBA+, a sixth of the rate": (
        "fedeba-plus, learning-rate=0.016667, server-learning-rate=1.0, temperature=0.1",
        "#56B4E9",
    ),
}
"""Arms of amendment 3: name in the figure to label in the CSVs, and colour."""
PLACEBOS = {
    "FedAvg": "fedeba, learning-rate=0.1, server-learning-rate=1.0, temperature=1000000.0",
    "FedEBA+ as printed": (
        "fedeba-plus, learning-rate=0.1, server-learning-rate=1.0, temperature=0.1000001"
    ),
}
LONG = {
    "FedAvg": "fedavg, server-learning-rate=1.0",
    "small step": "fedavg, server-learning-rate=0.19",
    "FedEBA": "fedeba, aggregation-losses=after, server-learning-rate=1.0",
    "before": "fedeba, aggregation-losses=before, server-learning-rate=1.0",
    "FedEBA+": (
        "fedeba-plus, aggregation-losses=after, alpha=0.9, server-learning-rate=1.0, "
        "theta=0.0"
    ),
    "Prac-FedEBA+": (
        "prac-fedeba-plus, aggregation-losses=after, alpha=0.1, "
        "server-learning-rate=1.0, theta=15.0"
    ),
    "Prac-FedEBA+ 0.9": (
        "prac-fedeba-plus, aggregation-losses=after, alpha=0.9, "
        "server-learning-rate=1.0, theta=15.0"
    ),
    "q-FFL": "qffl",
    "FedFV": "fedfv",
    "TERM": "term",
    "FedAvg, 4000 rounds": "fedavg, num-rounds=4000",
    "theta 15": "fedeba-plus, server-learning-rate=1.0, theta=15.0",
    "theta 30": "fedeba-plus, server-learning-rate=1.0, theta=30.0",
    "theta 45": "fedeba-plus, server-learning-rate=1.0, theta=45.0",
}
"""Runs of 2000 rounds: short name to label in the CSV."""
Seeds = dict[int, dict[str, float]]


def by_seed(name: str) -> dict[str, Seeds]:
    """Return the rows of results/NAME.csv by label, then by seed."""
    by_label: dict[str, Seeds] = {}
    with (HERE / "results" / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            label, seed = row.pop("label"), int(row.pop("seed"))
            by_label.setdefault(label, {})[seed] = {k: float(v) for k, v in row.items()}
    return by_label


def curves(label: str) -> list[list[tuple[int, float]]]:
    """Return, seed by seed, rounds and mean accuracies of an arm."""
    points: dict[int, list[tuple[int, float]]] = {}
    with (HERE / "results" / "collapse_by_round.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["label"] == label:
                point = int(row["round"]), float(row["accuracy"])
                points.setdefault(int(row["seed"]), []).append(point)
    return list(points.values())


def paired(first: Seeds, second: Seeds, column: str = "mean") -> list[float]:
    """Return first minus second over the seeds that both have."""
    seeds = sorted(first.keys() & second.keys())
    return [first[seed][column] - second[seed][column] for seed in seeds]


def draw_curves(axes: Axes) -> None:
    """Draw the arms' accuracy against rounds: each seed thin, the mean thick."""
    for name, (label, colour) in ARMS.items():
        seeds = curves(label)
        for points in seeds:
            axes.plot(*zip(*points, strict=True), color=colour, alpha=0.3, lw=0.8)
        rounds = [r for r, _ in seeds[0]]
        means = [fmean(points[i][1] for points in seeds) for i in range(len(rounds))]
        axes.plot(rounds, means, color=colour, lw=2, label=name)
    axes.set_ylim(0, 102)
    axes.set_xlabel("round")
    axes.set_ylabel("mean accuracy over clients, %")
    axes.set_title(f"First 100 rounds, {len(seeds)} seeds", fontsize=9)
    axes.legend(fontsize=7, loc="upper left", ncols=2)
    axes.grid(alpha=0.3)


def draw_differences(axes: Axes, names: Sequence[str]) -> None:
    """Draw variance minus FedAvg's: seeds, mean and 95 % t interval."""
    rows = by_seed("last_10_evaluations_by_seed")
    for place, name in enumerate(names):
        values = paired(rows[LONG[name]], rows[LONG["FedAvg"]], "variance")
        half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
        axes.plot(values, [place] * len(values), "o", color="#0072B2", alpha=0.5, ms=5)
        axes.errorbar(
            fmean(values), place + 0.2, xerr=half, fmt="s", color="#0072B2", capsize=4, ms=5
        )
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("variance over clients minus FedAvg's, %²")
    axes.set_title("2000 rounds, 3 seeds: too few to call an effect", fontsize=9)
    axes.grid(axis="x", alpha=0.3)


def main() -> None:
    """Write figure.png."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_curves(left)
    draw_differences(
        right, ("FedFV", "Prac-FedEBA+", "q-FFL", "FedAvg, 4000 rounds", "FedEBA", "TERM")
    )
    figure.savefig(HERE / "figure.png", dpi=80)


if __name__ == "__main__":
    main()
