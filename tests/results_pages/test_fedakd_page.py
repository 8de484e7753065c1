"""Every figure of FedAKD's results page is what the CSVs beside it give."""

import csv
from statistics import fmean

import pytest

from fedsuite.core.metrics import collaborative_fairness
from tests.results_pages.recomputed import (
    SIMULATIONS,
    absent,
    difference,
    figure_script,
    row,
    spread,
    verdict,
)

FOLDER = SIMULATIONS / "fedakd"
PAGE = (FOLDER / "README.md").read_text()
FIGURE = figure_script("fedakd")
OWN, WHOLE = FIGURE.OWN, FIGURE.WHOLE
AKD, AVG = FIGURE.AKD, FIGURE.AVG
ALONE = ("standalone", "client's model")
SHARED, AKD_SHARED = ("fedavg", "client's model"), ("fedakd", "global model")
# FedProx at a weight of 1e-6: FedAvg but for how sums are rounded.
PLACEBO = ("placebo", "trained model")
PROX, PROX_SHARED = ("fedprox", "trained model"), ("fedprox", "client's model")
PARTITIONS = {
    "ICS(5)": "fashion_mnist_ics5",
    "POW": "fashion_mnist_pow",
    "BCS": "fashion_mnist_bcs",
}
RIVALS = {"CFFL": "cffl", "CGSV": "cgsv", "FedAVE": "fedave", "FedSAC": "fedsac"}


def fairness(found, experiment, rows):
    pairs = zip(found.of(ALONE, rows), found.of(experiment, rows), strict=True)
    return [collaborative_fairness(alone, together) for alone, together in pairs]


def cf(found, experiment, rows):
    values = fairness(found, experiment, rows)
    return "undefined" if None in values else spread(values, 1)


def largest(found, experiment, rows):
    return [max(accuracies) for accuracies in found.of(experiment, rows)]


def no_worse(found, experiment, other, rows):
    """Of how many clients, over all seeds, the first is no less accurate."""
    pairs = zip(found.of(experiment, rows), found.of(other, rows), strict=True)
    return sum(a >= b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))


def judged(values, placebo, digits=2):
    """The difference and, where there are enough seeds for one, the verdict."""
    told = difference(values, digits)
    return told if len(values) < 5 else f"{told}, {verdict(values, placebo)}"


def gained(found, first, second, rows):
    values = found.paired(first, second, rows)
    return judged(values, found.paired(PLACEBO, AVG, rows) if floor(found, rows) else [])


def floor(found, rows):
    """Whether the file has runs of the placebo."""
    return (*PLACEBO, rows) in found.by_experiment


def in_means(found, other, rows):
    return difference(minus(found.means(AKD, rows), other.means(AKD, rows)))


def in_fairness(found, first, other, second, rows):
    """CF of the first experiment minus that of the second, which has a file of its own."""
    values = minus(fairness(found, first, rows), fairness(other, second, rows))
    noise = []
    if floor(other, rows):
        noise = minus(fairness(other, PLACEBO, rows), fairness(other, AVG, rows))
    return judged(values, noise, 1)


def scores(found, experiment):
    """Cells of a partition's table: CF twice, largest, and mean twice."""
    alone = experiment == ALONE
    return (
        "100" if alone else cf(found, experiment, OWN),
        "100" if alone else cf(found, experiment, WHOLE),
        spread(largest(found, experiment, WHOLE)),
        spread(found.means(experiment, OWN)),
        spread(found.means(experiment, WHOLE)),
    )


def partitions():
    for title, name in PARTITIONS.items():
        found = FIGURE.Accuracies(name)
        for label, model, experiment in (
            ("Standalone", "its own", ALONE),
            ("FedAvg", "after local training", AVG),
            ("FedAvg", "global", SHARED),
            ("FedAKD", "local", AKD),
            ("FedAKD", "global", AKD_SHARED),
        ):
            yield row(title, label, model, *scores(found, experiment))


def differences():
    for title, name in PARTITIONS.items():
        found = FIGURE.Accuracies(name)
        for rows in (WHOLE, OWN):
            for label, other in (
                ("Standalone", ALONE),
                ("FedAvg, after local training", AVG),
                ("FedAvg, global", SHARED),
            ):
                clients = f"{no_worse(found, AKD, other, rows)} of 30"
                yield row(title, rows, label, gained(found, AKD, other, rows), clients)


def fairness_differences():
    for title, name in PARTITIONS.items():
        found = FIGURE.Accuracies(name)
        yield row(title, *(in_fairness(found, AKD, found, AVG, r) for r in (WHOLE, OWN)))


def ablations():
    for label, suffix, published in (
        ("none: FedAKD", "", ("78.42", "71.23")),
        ("all-data", "_all_data", ("66.02", "70.66")),
        ("correct-agg", "_correct_agg", ("77.31", "71.17")),
        ("single-dist", "_single_dist", ("58.49", "64.02")),
    ):
        found = FIGURE.Accuracies(f"fashion_mnist_ics5{suffix}")
        fair = cf(found, AKD, OWN), cf(found, AKD, WHOLE)
        means = spread(found.means(AKD, OWN)), spread(found.means(AKD, WHOLE))
        yield row(label, *fair, *means, *published)


def ablation_differences():
    full = FIGURE.Accuracies("fashion_mnist_ics5")
    for label, suffix in (("all-data", "_all_data"), ("correct-agg", "_correct_agg")):
        found = FIGURE.Accuracies(f"fashion_mnist_ics5{suffix}")
        yield row(
            label,
            in_fairness(full, AKD, found, AKD, WHOLE),
            in_fairness(full, AKD, found, AKD, OWN),
            in_means(full, found, WHOLE),
        )


def orders():
    """Single-dist in both orders, and FedAKD in the authors'."""
    found = {}
    with (FOLDER / "results" / "single_dist_orders.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            key = line["data"], line["ablation"], line["order"]
            found.setdefault(key, []).append(line)
    for key, lines in found.items():
        cells = []
        for name in ("own", "whole", "selected_share"):
            values = [float(line[name]) for line in lines]
            cells.append(spread(values, 1) if len(values) > 1 else f"{values[0]:.1f}")
        by_seed = ", ".join(f"{float(line['whole']):.1f}" for line in lines)
        yield row(*key, str(len(lines)), *cells, by_seed)
    for data in ("digits", "ICS(5), a fifth"):
        single = [
            [float(line["whole"]) for line in found[data, "single-dist", order]]
            for order in ("code", "paper")
        ]
        yield difference(minus(*single), 1).split(" (")[0]


def rivals():
    found = FIGURE.Accuracies("fashion_mnist_ics5_rivals")
    full = FIGURE.Accuracies("fashion_mnist_ics5")
    for label, method in (*RIVALS.items(), ("FedAKD", "fedakd")):
        from_file, model = (full if method == "fedakd" else found), (method, AKD[1])
        served = 100 * no_worse(from_file, model, ALONE, WHOLE) / 30
        yield row(
            label,
            cf(from_file, model, OWN),
            cf(from_file, model, WHOLE),
            spread(largest(from_file, model, OWN)),
            spread(from_file.means(model, OWN)),
            spread(from_file.means(model, WHOLE)),
            f"{served:.0f} %",
        )


def rival_differences():
    found = FIGURE.Accuracies("fashion_mnist_ics5_rivals")
    full = FIGURE.Accuracies("fashion_mnist_ics5")
    for label, method in RIVALS.items():
        model = (method, AKD[1])
        apart = [max(a) - min(a) for a in found.of(model, WHOLE)]
        yield row(
            label,
            in_fairness(full, AKD, found, model, WHOLE),
            difference(minus(full.means(AKD, WHOLE), found.means(model, WHOLE))),
            spread(apart),
        )


def low_rate():
    for title, name in PARTITIONS.items():
        found = FIGURE.Accuracies(f"{name}_standalone_at_0.0001")
        cells = []
        for rows in (WHOLE, OWN):
            cells += [spread(found.means(ALONE, rows))]
            cells += [difference(found.paired(AKD, ALONE, rows))]
        yield row(title, *cells, cf(found, AKD, WHOLE), cf(found, AVG, WHOLE))


HOSPITALS = {
    "heart disease, 4 hospitals": "hospitals",
    "diabetes, 20 specialties": "diabetes130",
}


def hospitals():
    for title, name in HOSPITALS.items():
        found = FIGURE.Accuracies(name)
        columns = ALONE, SHARED, AVG, PROX_SHARED, PROX, AKD
        yield row(title, *(spread(found.means(column, OWN)) for column in columns))


def hospital_differences():
    for title, name in HOSPITALS.items():
        found = FIGURE.Accuracies(name)
        for label, other in (
            ("Standalone", ALONE),
            ("FedAvg, after local training", AVG),
            ("FedProx, after local training", PROX),
            ("FedAvg, global", SHARED),
            ("FedProx, global", PROX_SHARED),
        ):
            pairs = sum(map(len, found.of(AKD, OWN)))
            served = f"{no_worse(found, AKD, other, OWN)} of {pairs}"
            yield row(title, label, gained(found, AKD, other, OWN), served)
        if floor(found, OWN):
            yield row(title, "(placebo)", difference(found.paired(PLACEBO, AVG, OWN)), "")


def hospital_fairness():
    found = FIGURE.Accuracies("diabetes130")
    ahead = in_fairness(found, AKD, found, AVG, OWN)
    yield row(cf(found, AKD, OWN), cf(found, AVG, OWN), ahead)


def equal_time():
    found = FIGURE.Accuracies("diabetes130_equal_time")
    with (FOLDER / "results" / "diabetes130_round_time.csv").open(newline="") as file:
        times = {line["experiment"]: line for line in csv.DictReader(file)}
    for label, model, experiment in (
        ("FedAvg", "after local training", AVG),
        ("FedAvg", "global", SHARED),
        *((label, "given to it", (name, AKD[1])) for label, name in RIVALS.items()),
        ("FedAKD", "local", AKD),
    ):
        means = found.means(experiment, OWN)
        ahead = minus(found.means(AKD, OWN)[: len(means)], means)
        noise = found.paired(PLACEBO, AVG, OWN) if floor(found, OWN) else []
        yield row(
            label,
            model,
            f"{float(times[experiment[0]]['CPU s/round']):.3f}",
            times[experiment[0]]["rounds"],
            str(len(means)),
            cf(found, experiment, OWN),
            spread(means),
            "" if experiment == AKD else judged(ahead, noise),
        )
    if floor(found, OWN):
        cells = [""] * 6
        yield row("(placebo)", *cells, difference(noise))


def equal_rounds():
    found = FIGURE.Accuracies("diabetes130_equal_rounds")
    full = FIGURE.Accuracies("diabetes130_equal_time")
    for label, experiment in (("after local training", AVG), ("global", SHARED)):
        means = found.means(experiment, OWN)
        ahead = minus(full.means(AKD, OWN)[: len(means)], means)
        yield row("FedAvg", label, spread(means), difference(ahead))


def answer():
    """What the page says before its first heading."""
    found = [FIGURE.Accuracies(name) for name in PARTITIONS.values()]
    for other in (ALONE, AVG):
        values = [f"{fmean(f.paired(AKD, other, WHOLE)):+.2f}" for f in found]
        yield f"{values[0]}, {values[1]} and {values[2]}"
    specialties = FIGURE.Accuracies("diabetes130")
    for other in (ALONE, AVG):
        yield difference(specialties.paired(AKD, other, OWN)).split(" (")[0]
    yield f"up to {max(map(abs, specialties.paired(PLACEBO, AVG, OWN))):.2f}"
    timed = FIGURE.Accuracies("diabetes130_equal_time").paired(AKD, AVG, OWN)
    yield difference(timed).split(" (")[0]
    rivals = FIGURE.Accuracies("fashion_mnist_ics5_rivals")
    behind = minus(found[0].means(AKD, WHOLE), rivals.means(("fedsac", AKD[1]), WHOLE))
    yield f"{-fmean(behind):.2f} points"


def minus(first, second):
    return [a - b for a, b in zip(first, second, strict=True)]


PARTS = (
    partitions,
    differences,
    fairness_differences,
    ablations,
    ablation_differences,
    orders,
    rivals,
    rival_differences,
    low_rate,
    hospitals,
    hospital_differences,
    hospital_fairness,
    equal_time,
    equal_rounds,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_tables(part):
    lines = tuple(part())
    assert lines
    assert not absent(PAGE, lines)


def test_answer():
    assert not absent(PAGE.split("## ")[0], answer())


def test_page_names_a_figure_that_can_be_drawn(tmp_path):
    assert "(figure.png)" in PAGE
    assert (FOLDER / "figure.png").is_file()
    FIGURE.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
