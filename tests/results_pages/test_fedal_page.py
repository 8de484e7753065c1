"""Every figure of FedAL's results page is what the CSVs beside it give."""

import csv
from statistics import fmean

import pytest

from tests.results_pages.recomputed import (
    SIMULATIONS,
    absent,
    difference,
    figure_script,
    row,
    spread,
    verdict,
)

FOLDER = SIMULATIONS / "fedal"
PAGE = (FOLDER / "README.md").read_text()
FIGURE = figure_script("fedal")
EXPERIMENTS = {
    "FedAL": "FedAL tau 5",
    "discriminator alone": "discriminator alone tau 5",
    "FedMD-LF, 5 steps": "FedMD-LF tau 5",
    "placebo": "placebo tau 5",
    "FedMD, 5 steps": "FedMD tau 5",
    "FedMD, 1 step": "FedMD tau 1",
    "FedProto on public data, 1 step": "FedProto on public data tau 1",
    "alone": "alone",
}
DIFFERENCES = {
    "placebo - FedMD-LF": ("placebo tau 5", "FedMD-LF tau 5"),
    "FedAL - FedMD-LF: the discriminator": ("FedAL tau 5", "FedMD-LF tau 5"),
    "discriminator alone - FedMD: the same without less-forgetting": (
        "discriminator alone tau 5",
        "FedMD tau 5",
    ),
    "FedMD-LF - FedMD, both 5 steps: less-forgetting": ("FedMD-LF tau 5", "FedMD tau 5"),
    "FedAL - FedMD at 1 step: the paper's comparison": ("FedAL tau 5", "FedMD tau 1"),
    "FedMD at 5 steps - at 1 step: what the paper mixes in": (
        "FedMD tau 5",
        "FedMD tau 1",
    ),
    "FedMD - alone: the exchange": ("FedMD tau 5", "alone"),
}


def megabytes(runs, experiment, column):
    values = set(runs.column(experiment, column))
    assert len(values) == 1
    size = values.pop() / 1e6
    return f"{size:.0f}" if size >= 100 else f"{size:.1f}"


def accuracies(name):
    for alpha in ("1.0", "0.1"):
        runs = FIGURE.Runs(name, alpha)
        for label, experiment in EXPERIMENTS.items():
            if experiment not in runs.by_experiment:
                continue
            cells = [spread(runs.column(experiment)), "", "", "", ""]
            measured = runs.by_experiment[experiment][0]
            if measured["output_divergence"]:
                cells[1] = spread(runs.column(experiment, "output_divergence"), 4)
            if measured["discriminator_loss"]:
                cells[2] = spread(runs.column(experiment, "discriminator_loss"), 4)
            if experiment != "alone":
                cells[3] = megabytes(runs, experiment, "bytes_up")
                cells[4] = megabytes(runs, experiment, "bytes_down_train")
            seeds = str(len(runs.by_experiment[experiment]))
            yield row(alpha.removesuffix(".0"), label, seeds, *cells)


def differences(name):
    for alpha in ("1.0", "0.1"):
        runs = FIGURE.Runs(name, alpha)
        placebo = runs.paired(*FIGURE.PLACEBO)
        for label, (first, second) in DIFFERENCES.items():
            values = runs.paired(first, second)
            if not values:
                continue
            found = "noise" if label.startswith("placebo") else verdict(values, placebo)
            yield row(alpha.removesuffix(".0"), label, difference(values), found)


def arms(part):
    """Rows of the amendment: each arm minus FedMD-LF, on all rows and on own ones."""
    with (FOLDER / "results" / "adversarial_weight_by_seed.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["part"] == part]
    columns = ("whole_test_accuracy", "own_accuracy", "worst_client")
    found = {
        (line["experiment"], column, line["seed"]): float(line[column])
        for line in lines
        for column in columns
    }
    seeds = sorted({line["seed"] for line in lines})
    for name in dict.fromkeys(line["experiment"] for line in lines):
        if name == "FedMD-LF":
            continue
        cells = [
            difference([found[name, c, s] - found["FedMD-LF", c, s] for s in seeds]).split(
                " ("
            )[0]
            for c in columns
        ]
        yield row(name, *cells)


@pytest.mark.parametrize("part", ["held-out", "test"])
def test_arms_of_the_amendment(part):
    lines = tuple(arms(part))
    assert len(lines) >= 3
    assert not absent(PAGE, lines)


def answer():
    """What the page says before its first heading."""
    digits = FIGURE.Runs("digits_by_seed", "0.1")
    fashion = FIGURE.Runs("fashion_mnist_by_seed", "0.1")
    exchange = [
        fmean(FIGURE.Runs(name, alpha).paired("FedMD tau 5", "alone"))
        for name in ("digits_by_seed", "fashion_mnist_by_seed")
        for alpha in ("1.0", "0.1")
    ]
    found = {
        "discriminator": digits.paired("FedAL tau 5", "FedMD-LF tau 5"),
        "placebo": digits.paired(*FIGURE.PLACEBO),
    }
    told = {name: difference(values).split(" (")[0] for name, values in found.items()}
    for name, pair in (
        ("fashion discriminator", ("FedAL tau 5", "FedMD-LF tau 5")),
        ("fashion less-forgetting", ("FedMD-LF tau 5", "FedMD tau 5")),
    ):
        told[name] = f"{fmean(fashion.paired(*pair)):+.2f}"
    return {**told, "exchange": f"{min(exchange):.0f} to {max(exchange):.0f} points"}


def test_answer():
    assert not absent(PAGE.split("## ")[0], answer().values())


def test_rule_for_seen():
    """By hand: five values 1.0 to 1.4 have the interval 1.2 -+ 2.776 x 0.158 / 2.236."""
    values = [1.0, 1.1, 1.2, 1.3, 1.4]
    assert difference(values, 3).startswith("+1.200 [+1.004, +1.396] (")
    quiet, loud = [0.0] * 5, [0.0, 0.0, 0.0, 0.2, -1.01]
    assert verdict(values, quiet) == verdict([-v for v in values], quiet) == "seen"
    assert verdict(values, loud) == verdict([-v for v in values], loud) == "not seen"
    assert verdict([*values[:4], -4.0], quiet) == "not seen"
    assert verdict(values[:4], quiet) == verdict(values, quiet[:4]) == "not shown"


@pytest.mark.parametrize("name", ["digits_by_seed", "fashion_mnist_by_seed"])
@pytest.mark.parametrize("part", [accuracies, differences])
def test_tables(part, name):
    lines = tuple(part(name))
    assert lines
    assert not absent(PAGE, lines)


def test_page_names_a_figure_that_can_be_drawn(tmp_path):
    assert "![" in PAGE and "(figure.png)" in PAGE
    assert (FOLDER / "figure.png").is_file()
    FIGURE.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
