"""Draws figure.png of this folder's README from the CSVs in results/.

python simulations/decomposition/figure.py
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

HERE = Path(__file__).parent
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#999999"
DENSE = "decomposition=false"
FACTORED = "decomposition=true, decomposition-average=factors"
CONTROL = "decomposition=true, decomposition-average=products"
METHODS = {"FedAvg": "fedavg", "SCAFFOLD": "scaffold", "FedDyn": "feddyn", "FedDC": "feddc"}
FACTORS = "fedavg, decomposition-average=factors-regauged"
PRODUCTS = "fedavg, decomposition-average=products-regauged"
FACTORS_PLACEBO = "fedprox, decomposition-average=factors-regauged"
PRODUCTS_PLACEBO = "fedprox, decomposition-average=products-regauged"
FIRST_TUNING_SEED = 100
FINALS = HERE.parent / "leaderboard" / "first" / "finals.csv"
BOARD = {
    "fashion-shards-cnn": "Fashion-MNIST, 12,000 rows, LeNet",
    "cifar10-cnn": "CIFAR-10, 10,000 rows, LeNet",
}
Seeds = dict[int, dict[str, float]]


def by_seed(name: str) -> dict[str, Seeds]:
    """Return the rows of results/NAME.csv by label, then by seed."""
    by_label: dict[str, Seeds] = {}
    with (HERE / "results" / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            label, seed = row.pop("label"), int(row.pop("seed"))
            by_label.setdefault(label, {})[seed] = {k: float(v) for k, v in row.items()}
    return by_label


def paired(first: Seeds, second: Seeds, column: str = "mean") -> list[float]:
    """Return first minus second over the seeds that both have."""
    seeds = sorted(first.keys() & second.keys())
    return [first[seed][column] - second[seed][column] for seed in seeds]


def at_best_rates() -> dict[str, tuple[Seeds, Seeds, Seeds]]:
    """Return dense, factored and placebo by problem, each arm at a rate tuned for it."""
    arms: dict[str, Seeds] = {}
    with (HERE / "results" / "rates_by_seed.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["seed"]) < FIRST_TUNING_SEED:
                scores = {name: float(row[name]) for name in ("mean", "worst_10")}
                arms.setdefault(row["arm"], {})[int(row["seed"])] = scores
    by_problem = {
        "Fashion-MNIST, 6,000 rows": (arms["dense"], arms["factored"], arms["placebo"])
    }
    for problem, title in BOARD.items():
        columns = [board(problem, name) for name in ("fedavg", "decomposition", "placebo")]
        by_problem[title] = (columns[0], columns[1], columns[2])
    return by_problem


def board(problem: str, method: str) -> Seeds:
    """Return a method's rows of the leaderboard's finals."""
    with FINALS.open(newline="") as file:
        return {
            int(row["seed"]): {
                "mean": float(row["mean"]),
                "worst_10": float(row["worst_10"]),
            }
            for row in csv.DictReader(file)
            if (row["problem"], row["method"]) == (problem, method)
        }


def draw(axes: Axes, place: int, values: Sequence[float], colour: str) -> None:
    """Draw each seed, their mean, and its 95 % t interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    axes.plot([place] * len(values), values, "o", color=colour, alpha=0.5, ms=5)
    axes.errorbar(place + 0.2, fmean(values), half, fmt="s", color=colour, capsize=4, ms=5)


def column(axes: Axes, groups: dict[str, tuple[list[float], str]], title: str) -> None:
    """Draw one panel of paired differences."""
    for place, (values, colour) in enumerate(groups.values()):
        draw(axes, place, values, colour)
    axes.axhline(0, color="black", lw=0.8)
    names = [f"{name}\n{len(values)} seeds" for name, (values, _) in groups.items()]
    axes.set_xticks(range(len(groups)), names, fontsize=8)
    axes.set_xlim(-0.5, len(groups) - 0.3)
    axes.set_ylabel("difference of mean accuracy, points")
    axes.set_title(title, fontsize=9)
    axes.grid(axis="y", alpha=0.3)


def main() -> None:
    """Write figure.png."""
    rows, pair = by_seed("last_10_evaluations_by_seed"), by_seed("balanced_pair_by_seed")
    gains = {
        name: (paired(rows[f"{key}, {FACTORED}"], rows[f"{key}, {DENSE}"]), BLUE)
        for name, key in METHODS.items()
    }
    figure = Figure(figsize=(14, 4), layout="constrained")
    first, left, right = figure.subplots(1, 3)
    tuned = {
        title.replace(", ", ",\n"): (paired(factored, dense), BLUE)
        for title, (dense, factored, _) in at_best_rates().items()
    }
    column(first, tuned, "Factored minus dense, each at a learning rate tuned for it")
    column(left, gains, "Factored minus dense, at one learning rate (100 rounds)")
    column(
        right,
        {
            "cross terms\n(factors - products)": (
                paired(pair[FACTORS], pair[PRODUCTS]),
                BLUE,
            ),
            "placebo\nof factors": (paired(pair[FACTORS_PLACEBO], pair[FACTORS]), GREY),
            "placebo\nof products": (paired(pair[PRODUCTS_PLACEBO], pair[PRODUCTS]), GREY),
            "placebo\nof C1": (
                paired(rows[f"fedprox, {CONTROL}"], rows[f"fedavg, {CONTROL}"]),
                ORANGE,
            ),
        },
        "Balanced factors in both arms (40 rounds), and C1 for scale",
    )
    figure.savefig(HERE / "figure.png", dpi=100)


if __name__ == "__main__":
    main()
