"""Every figure of filter decomposition's results page is what the CSVs beside it give."""

import csv
import importlib.util
from statistics import fmean

import pytest

from tests.results_pages.recomputed import (
    SIMULATIONS,
    absent,
    difference,
    figure_script,
    interval,
    row,
    spread,
    verdict,
)

FOLDER = SIMULATIONS / "decomposition"
PAGE = (FOLDER / "README.md").read_text()
FIGURE = figure_script("decomposition")
ROWS = FIGURE.by_seed("last_10_evaluations_by_seed")
RATES = FIGURE.by_seed("learning_rates_by_seed")
PAIR, STEPS = (FIGURE.by_seed(f"balanced_pair_{n}by_seed") for n in ("", "steps_"))
ARMS = {"dense": FIGURE.DENSE, "factored": FIGURE.FACTORED, "factored, C1": FIGURE.CONTROL}
KEYS = {
    "fedavg": "",
    "fedprox": ", `method=fedprox proximal-mu=0.0001`",
    "scaffold": ", `method=scaffold`",
    "feddyn": ", `method=feddyn`",
    "feddc": ", `method=feddc`",
}
NAMES = {key: name for name, key in FIGURE.METHODS.items()} | {"fedprox": "FedProx"}
PUBLISHED = {"fedavg": "+2.10", "scaffold": "+2.15", "feddyn": "+0.84", "feddc": "+0.69"}
RATES_TITLE = "Fashion-MNIST, 6,000 rows"
PERSONAL_ARMS = {
    "3 personal atoms": "FedAvg, 3 personal atoms",
    "6 personal atoms": "FedAvg, 6 personal atoms",
    "9 personal atoms": "FedAvg, 9 personal atoms",
    "fedper": "FedPer",
    "fedavg-ft": "FedAvg with fine-tuning",
    "ditto": "Ditto",
    "standalone": "Standalone",
}
COUNTED = tuple(PUBLISHED)
"""FedProx at mu = 0.0001 is FedAvg again: it is a placebo, and counts once."""


def rows_of(name):
    with (FOLDER / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


RATE_ROWS, PERSONAL = rows_of("rates_by_seed"), rows_of("personal_by_seed")


def seeds(runs, column="mean"):
    return [runs[seed][column] for seed in sorted(runs)]


def gain(method, column="mean", arm="factored", other="dense"):
    first, second = ROWS[f"{method}, {ARMS[arm]}"], ROWS[f"{method}, {ARMS[other]}"]
    return FIGURE.paired(first, second, column)


def placebo(arm):
    first, second = ROWS[f"fedprox, {ARMS[arm]}"], ROWS[f"fedavg, {ARMS[arm]}"]
    return FIGURE.paired(first, second)


def accuracies():
    for method, keys in KEYS.items():
        for arm, label in ARMS.items():
            if runs := ROWS.get(f"{method}, {label}"):
                yield row(
                    NAMES[method] + keys * (arm == "dense"),
                    arm,
                    ", ".join(f"{value:.2f}" for value in seeds(runs)),
                    spread(seeds(runs)),
                    spread(seeds(runs, "worst_5"), 1),
                    spread(seeds(runs, "variance"), 0),
                )


def gains():
    floor = placebo("dense") + placebo("factored")
    for method in COUNTED:
        yield row(
            f"{NAMES[method]}: factored minus dense",
            difference(gain(method)),
            verdict(gain(method), floor),
            difference(gain(method, "worst_5"), 1),
            PUBLISHED[method],
        )


def chaos():
    for arm in ARMS:
        yield row(f"FedProx minus FedAvg, {arm}", difference(placebo(arm)))
    for arm, other in (("factored", "factored, C1"), ("factored, C1", "dense")):
        values = gain("fedavg", arm=arm, other=other)
        yield row(f"FedAvg: {arm} minus {other}", difference(values))


def pair_arms():
    return {
        "`factors-regauged`": PAIR[FIGURE.FACTORS],
        "`products-regauged`": PAIR[FIGURE.PRODUCTS],
        "placebo of `factors-regauged`": PAIR[FIGURE.FACTORS_PLACEBO],
        "placebo of `products-regauged`": PAIR[FIGURE.PRODUCTS_PLACEBO],
    }


def pair_accuracies():
    for name, runs in pair_arms().items():
        values = ", ".join(f"{value:.2f}" for value in seeds(runs))
        yield row(name, values, spread(seeds(runs)))


def pair_differences():
    factors, products, *placebos = pair_arms().values()
    changes = [
        FIGURE.paired(changed, arm)
        for changed, arm in zip(placebos, (factors, products), strict=True)
    ]
    cross = FIGURE.paired(factors, products)
    yield row(
        "`factors-regauged` minus `products-regauged`: the cross terms",
        difference(cross),
        verdict(cross, changes[0] + changes[1]),
    )
    for name, values in zip(("factors", "products"), changes, strict=True):
        yield row(f"placebo minus `{name}-regauged`", difference(values), "")


def rates():
    dense, factored = "fedavg, decomposition=false", "fedavg, decomposition=true"
    for name, label in (
        ("dense, `learning-rate=0.05`", f"{dense}, learning-rate=0.05"),
        ("dense, 0.1", f"{dense}, learning-rate=0.1"),
        ("dense, 0.2", f"{dense}, learning-rate=0.2"),
        ("factored, 0.1", f"{factored}, learning-rate=0.1"),
    ):
        runs = RATES[label]
        yield row(
            name,
            *(
                "{mean:.2f} / {worst_5:.1f} / {variance:.0f}".format(**runs[seed])
                if seed in runs
                else ""
                for seed in range(3)
            ),
        )
    twice = RATES[f"{dense}, learning-rate=0.2"]
    for name, values in (
        (
            "dense at 0.2 minus dense at 0.1",
            FIGURE.paired(twice, RATES[f"{dense}, learning-rate=0.1"]),
        ),
        (
            "factored at 0.1 minus dense at 0.2",
            FIGURE.paired(RATES[f"{factored}, learning-rate=0.1"], twice),
        ),
    ):
        yield row(name, difference(values))


def traffic():
    with (FOLDER / "results" / "traffic.csv").open(newline="") as file:
        return [{k: int(v) for k, v in entry.items()} for entry in csv.DictReader(file)]


def savings(entry):
    """Return how many times less than dense a run sends up, and both ways together."""
    dense = entry["dense_parameters_each_way"]
    up, down = entry["true_parameters_up"], entry["true_parameters_down"]
    return dense / up, 2 * dense / (up + down)


def span(values, digits):
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def sent():
    for period, rounds in ((1, 100), (2, 100), (5, 10), (5, 100), (5, 600), (10, 100)):
        found = [
            entry
            for entry in traffic()
            if (entry["coefficient_period"], entry["rounds"]) == (period, rounds)
        ]
        fetches = [100 * e["fetches"] / e["participations"] for e in found]
        yield row(
            str(period),
            str(rounds),
            str(len(found)),
            span([savings(e)[0] for e in found], 2),
            span(fetches, 1) if period > 1 else "",
            span([savings(e)[1] for e in found], 2),
        )


def tuned():
    for title, (dense, factored, placebo_runs) in FIGURE.at_best_rates().items():
        # The board's placebo is of the dense arm, this page's of the factored one.
        changed = factored if title == RATES_TITLE else dense
        noise = FIGURE.paired(placebo_runs, changed)
        gained = FIGURE.paired(factored, dense)
        yield row(
            title,
            spread(seeds(dense)),
            spread(seeds(factored)),
            difference(gained),
            verdict(gained, noise),
            difference(FIGURE.paired(factored, dense, "worst_10"), 1),
            f"{max(map(abs, noise)):.2f}",
        )


def chosen():
    """The rates and their validation accuracy, of which each arm took the highest."""
    for arm in ("dense", "factored"):
        found = [
            fmean(
                float(e["validation"])
                for e in RATE_ROWS
                if (e["arm"], e["learning_rate"]) == (arm, rate)
                and int(e["seed"]) >= FIGURE.FIRST_TUNING_SEED
            )
            for rate in ("0.05", "0.1", "0.2")
        ]
        assert max(found) == found[-1]
        yield row(arm, *(f"{value:.2f}" for value in found))


def personal():
    for arm in PERSONAL_ARMS:
        values = [float(e["mean"]) for e in PERSONAL if e["arm"] == arm]
        worst = [float(e["worst_10"]) for e in PERSONAL if e["arm"] == arm]
        assert len(values) == 5
        yield row(PERSONAL_ARMS[arm], spread(values), spread(worst, 1))


TABLES = (
    accuracies,
    tuned,
    chosen,
    personal,
    gains,
    chaos,
    pair_accuracies,
    pair_differences,
    rates,
    sent,
)


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_are_what_the_csvs_give(table):
    assert not absent(PAGE, table())


def sentences():
    low, high = interval(gain("fedavg"))
    yield f"{fmean(gain('fedavg')):+.2f} points [{low:+.2f}, {high:+.2f}]"
    pairs = [value for method in COUNTED for value in gain(method)]
    yield f"{sum(value > 0 for value in pairs)} of {len(pairs)} pairs"
    factors, products, *placebos = pair_arms().values()
    cross = FIGURE.paired(factors, products)
    low, high = interval(cross)
    yield f"{fmean(cross):+.2f} points [{low:+.2f}, {high:+.2f}]"
    changes = [
        FIGURE.paired(changed, arm)
        for changed, arm in zip(placebos, (factors, products), strict=True)
    ]
    largest = max(abs(value) for values in changes for value in values)
    yield f"at most {largest:.2f} points"
    worst = max(
        v for runs in STEPS.values() for v in seeds(runs, "atoms_condition_largest")
    )
    yield f"at most {worst:.0f} after round 1"
    ratio = fmean(seeds(STEPS[FIGURE.FACTORS], "cross_term_ratio"))
    yield f"{100 * ratio:.1f} % of that of a round's update"
    tens = [e for e in traffic() if e["rounds"] == 10]
    hundreds = [e for e in traffic() if (e["coefficient_period"], e["rounds"]) == (5, 100)]
    yield f"{span([savings(e)[1] for e in tens], 2)} times over ten rounds"
    yield f"{span([savings(e)[1] for e in hundreds], 2)} over a hundred"
    yield f"saves {span([savings(e)[1] for e in hundreds], 2)} times"
    moved = max(map(abs, placebo("factored, C1")))
    still = max(map(abs, placebo("dense") + placebo("factored")))
    yield f"moves C1 by up to {moved:.2f} points, and the other two arms by {still:.2f}"


def answers():
    for dense, factored, _ in FIGURE.at_best_rates().values():
        yield FIGURE.paired(factored, dense)
    for arm in ("fedper", "standalone"):
        yield [
            float(ours["mean"]) - float(theirs["mean"])
            for ours, theirs in zip(
                [e for e in PERSONAL if e["arm"] == "9 personal atoms"],
                [e for e in PERSONAL if e["arm"] == arm],
                strict=True,
            )
        ]


def test_tuned_arms_and_personal_atoms_are_told_as_they_came_out():
    assert not absent(
        PAGE,
        (
            f"{fmean(v):+.2f}{unit} [{interval(v)[0]:+.2f}, {interval(v)[1]:+.2f}]"
            for v, unit in zip(
                answers(), (" points", "", "", " points", " points"), strict=True
            )
        ),
    )


def test_the_answer_is_what_the_csvs_give():
    assert not absent(PAGE, sentences())


def test_the_answer_and_the_figure_come_first():
    answer, _, rest = PAGE.partition("## ")
    assert "![" in answer and "(figure.png)" in answer
    assert "Amendment" not in answer and "Amendment 4, 2026-11-23" in rest
    assert (FOLDER / "figure.png").stat().st_size < 100_000


def test_what_is_sent_is_what_the_strategy_sends():
    """The first line of ten rounds again, by the real strategy."""
    path = FOLDER / "traffic.py"
    spec = importlib.util.spec_from_file_location("traffic", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (expected,) = (
        entry for entry in traffic() if (entry["rounds"], entry["seed"]) == (10, 0)
    )
    assert script.count(5, 0, 10) == expected
