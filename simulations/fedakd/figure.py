"""Draw figure.png beside this file from the CSVs in results/: no options."""

import csv
from pathlib import Path
from statistics import fmean, stdev

import matplotlib.pyplot as plt
from scipy import stats

HERE = Path(__file__).parent
OWN, WHOLE = "own test rows", "whole test part"
# What each method's clients have on their own: the private model of FedAKD, and of a method
# that has only a shared one what local training left of it.
AKD, AVG = ("fedakd", "client's model"), ("fedavg", "trained model")
ROWS = (
    ("Fashion-MNIST, ICS(5)", "fashion_mnist_ics5", WHOLE),
    ("Fashion-MNIST, POW", "fashion_mnist_pow", WHOLE),
    ("Fashion-MNIST, BCS", "fashion_mnist_bcs", WHOLE),
    ("Fashion-MNIST, ICS(5)", "fashion_mnist_ics5", OWN),
    ("Fashion-MNIST, POW", "fashion_mnist_pow", OWN),
    ("Fashion-MNIST, BCS", "fashion_mnist_bcs", OWN),
    ("20 specialties", "diabetes130", OWN),
    ("4 hospitals", "hospitals", OWN),
    ("20 specialties, equal time", "diabetes130_equal_time", OWN),
)


class Accuracies:
    """Accuracies in per cent by experiment, model, kind of test rows, seed and client."""

    def __init__(self, name: str) -> None:
        self.by_experiment: dict[tuple[str, str, str], dict[int, dict[int, float]]] = {}
        with (HERE / "results" / f"{name}.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                model, rows = line["score"].split(", ")
                seed, client = int(line["seed"]), int(line["client"])
                for key, column in (
                    ((line["label"].split(" at ")[0], model), "federated"),
                    (("standalone", "client's model"), "standalone"),
                ):
                    of_seed = self.by_experiment.setdefault((*key, rows), {}).setdefault(
                        seed, {}
                    )
                    of_seed[client] = 100 * float(line[column])

    def of(self, experiment: tuple[str, str], rows: str) -> list[list[float]]:
        """Return the clients' accuracies of each seed."""
        seeds = self.by_experiment[(*experiment, rows)]
        return [[seeds[s][c] for c in sorted(seeds[s])] for s in sorted(seeds)]

    def means(self, experiment: tuple[str, str], rows: str) -> list[float]:
        """Return the plain mean over clients of each seed."""
        return [fmean(accuracies) for accuracies in self.of(experiment, rows)]

    def paired(
        self, first: tuple[str, str], second: tuple[str, str], rows: str
    ) -> list[float]:
        """Return the first experiment's mean minus the second's, seed by seed."""
        pairs = zip(self.means(first, rows), self.means(second, rows), strict=True)
        return [a - b for a, b in pairs]


def half_width(values: list[float]) -> float:
    """Return half of the 95 % t interval of the mean."""
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * stdev(values) / n**0.5)


def draw(target: Path) -> None:
    """Draw FedAKD's private models minus Standalone's and minus FedAvg's trained ones."""
    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    others = (
        (("standalone", "client's model"), "Standalone", "#1b9e77", -0.15),
        (AVG, "FedAvg, after local training", "#d95f02", 0.15),
    )
    names = []
    for y, (title, name, rows) in enumerate(ROWS):
        accuracies = Accuracies(name)
        for other, label, colour, shift in others:
            values = accuracies.paired(AKD, other, rows)
            axes.errorbar(
                fmean(values),
                y + shift,
                xerr=half_width(values),
                color=colour,
                capsize=3,
                label=f"minus {label}" if y == 0 else None,
            )
            # Filled from five seeds on: what the rule for "seen" asks for.
            face = colour if len(values) >= 5 else "white"
            axes.scatter(
                values,
                [y + shift] * len(values),
                s=18,
                marker="o",
                facecolors=face,
                edgecolors=colour,
                zorder=3,
            )
        names.append(f"{title}, {rows} ({len(values)} seeds)")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    figure.supxlabel(
        "mean accuracy of FedAKD's private models minus the other's, in points:\n"
        "dots are seeds (hollow: fewer than five), bars 95 % t intervals",
        fontsize=9,
    )
    figure.legend(loc="outside upper center", ncols=2)
    figure.savefig(target, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    plt.switch_backend("agg")
    draw(HERE / "figure.png")
