"""Draw figure.png beside this file from the CSVs in results/: no options."""

import csv
from pathlib import Path
from statistics import fmean, stdev

import matplotlib.pyplot as plt
from scipy import stats

HERE = Path(__file__).parent
PLACEBO = ("placebo tau 5", "FedMD-LF tau 5")
DIFFERENCES = {
    "placebo - FedMD-LF: noise": PLACEBO,
    "FedAL - FedMD-LF: the discriminator": ("FedAL tau 5", "FedMD-LF tau 5"),
    "FedMD-LF - FedMD: less-forgetting": ("FedMD-LF tau 5", "FedMD tau 5"),
    "FedAL - FedMD at 1 step: the paper's": ("FedAL tau 5", "FedMD tau 1"),
}
PANELS = (
    ("digits", "digits_by_seed", "0.1"),
    ("digits", "digits_by_seed", "1.0"),
    ("Fashion-MNIST", "fashion_mnist_by_seed", "0.1"),
    ("Fashion-MNIST", "fashion_mnist_by_seed", "1.0"),
)


class Runs:
    """Columns of the last round by experiment and seed, at one Dirichlet parameter."""

    def __init__(self, name: str, alpha: str) -> None:
        self.by_experiment: dict[str, dict[int, dict[str, str]]] = {}
        with (HERE / "results" / f"{name}.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                if line["alpha"] == alpha:
                    by_seed = self.by_experiment.setdefault(line["experiment"], {})
                    by_seed[int(line["seed"])] = line

    def column(self, experiment: str, name: str = "whole_test_accuracy") -> list[float]:
        """Return a column of an experiment, seed by seed."""
        by_seed = self.by_experiment[experiment]
        return [float(by_seed[seed][name]) for seed in sorted(by_seed)]

    def paired(self, first: str, second: str) -> list[float]:
        """Return accuracy of the first minus that of the second, over common seeds."""
        one, other = self.by_experiment.get(first, {}), self.by_experiment.get(second, {})
        name = "whole_test_accuracy"
        seeds = sorted(one.keys() & other.keys())
        return [float(one[seed][name]) - float(other[seed][name]) for seed in seeds]


def half_width(values: list[float]) -> float:
    """Return half of the 95 % t interval of the mean."""
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * stdev(values) / n**0.5)


def draw(target: Path) -> None:
    """Draw each difference of two methods, beside the placebo's."""
    figure, grid = plt.subplots(2, 2, figsize=(8, 4.4), layout="constrained", sharey=True)
    for axes, (title, name, alpha) in zip(grid.flat, PANELS, strict=True):
        runs = Runs(name, alpha)
        placebo = runs.paired(*PLACEBO)
        if placebo:
            limit = max(map(abs, placebo))
            axes.axvspan(-limit, limit, color="0.85")
        for y, (first, second) in enumerate(DIFFERENCES.values()):
            values = runs.paired(first, second)
            if not values:
                continue
            colour = "0.4" if (first, second) == PLACEBO else "#7570b3"
            width = half_width(values)
            axes.errorbar(fmean(values), y, xerr=width, color=colour, capsize=3)
            # Filled from five seeds on: what the rule for "seen" asks for.
            face = colour if len(values) >= 5 else "white"
            style = {"marker": "o", "facecolors": face, "edgecolors": colour, "s": 18}
            axes.scatter(values, [y] * len(values), zorder=3, **style)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(f"{title}, Dirichlet {alpha.removesuffix('.0')}", fontsize=10)
    grid[0, 0].set_yticks(range(len(DIFFERENCES)), DIFFERENCES)
    grid[0, 0].set_ylim(len(DIFFERENCES) - 0.5, -0.5)
    figure.supxlabel(
        "accuracy on the whole test part, points: dots are seeds (hollow: fewer than "
        "five),\nbars 95 % t intervals, grey the placebo's spread",
        fontsize=9,
    )
    figure.savefig(target, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    plt.switch_backend("agg")
    draw(HERE / "figure.png")
