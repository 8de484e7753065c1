"""Every figure of FedEBA+'s results page is what the CSVs beside it give."""

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

FOLDER = SIMULATIONS / "fedeba"
PAGE = (FOLDER / "README.md").read_text()
FIGURE = figure_script("fedeba")
LONG = {
    name: FIGURE.by_seed("last_10_evaluations_by_seed")[label]
    for name, label in FIGURE.LONG.items()
}
FAST, STEPS = (FIGURE.by_seed(f"collapse_{name}_by_seed") for name in ("scores", "steps"))
THETA = FIGURE.by_seed("theta_by_seed")
ARMS = {name: FAST[label] for name, (label, _) in FIGURE.ARMS.items()}
PRINTED, EQUAL = "FedEBA+ as printed", "FedEBA+, weights nearly equal"
COLUMNS = (("mean", 2), ("variance", 1), ("worst_5", 1))
METHODS = {
    "FedAvg": ("FedAvg (`method=fedavg`)", "86.49 ± 0.09", "62.44 ± 4.55", "71.27 ± 1.14"),
    "FedEBA": (
        "FedEBA, weights only (`method=fedeba`)",
        *("86.70 ± 0.11", "50.27 ± 5.60", "71.13 ± 0.69"),
    ),
    "FedEBA+": (
        "FedEBA+, alpha 0.9, theta 0 (as the file is)",
        *("87.50 ± 0.19", "43.41 ± 4.34", "72.07 ± 1.47"),
    ),
    "Prac-FedEBA+": (
        "Prac-FedEBA+, theta 15, alpha 0.1",
        *("86.62 ± 0.07", "46.41 ± 0.88", "71.40 ± 0.15"),
    ),
    "Prac-FedEBA+ 0.9": (
        "Prac-FedEBA+, theta 15, alpha 0.9",
        *("(alpha not printed)", "", ""),
    ),
    "q-FFL": (
        "q-FFL, q 0.5 (`baselines/qffl.toml`)",
        *("86.57 ± 0.19", "54.91 ± 2.82", "70.88 ± 0.98"),
    ),
    "FedFV": (
        "FedFV, alpha 0.5, tau 10 (`baselines/fedfv.toml`)",
        *("86.88 ± 0.26", "47.63 ± 1.79", "71.49 ± 0.39"),
    ),
    "TERM": (
        "TERM, T 0.1 (`baselines/term.toml`)",
        *("84.31 ± 0.38", "73.46 ± 2.06", "68.23 ± 0.10"),
    ),
    "small step": ("FedAvg, `server-learning-rate=0.19`", "", "", ""),
    "before": ("FedEBA, `aggregation-losses=before`", "", "", ""),
    "FedAvg, 4000 rounds": ("FedAvg, `num-rounds=4000`", "", "", ""),
}
COMPARED = {
    "FedEBA+ minus FedAvg": ("FedEBA+", "FedAvg"),
    "FedEBA+ minus FedAvg of 4000 rounds": ("FedEBA+", "FedAvg, 4000 rounds"),
    "FedEBA minus FedAvg": ("FedEBA", "FedAvg"),
    "Prac-FedEBA+ (alpha 0.1) minus FedAvg": ("Prac-FedEBA+", "FedAvg"),
    "Prac-FedEBA+ (alpha 0.9) minus FedAvg": ("Prac-FedEBA+ 0.9", "FedAvg"),
    "FedEBA minus the same with losses before training": ("FedEBA", "before"),
    "q-FFL minus FedAvg": ("q-FFL", "FedAvg"),
    "FedFV minus FedAvg": ("FedFV", "FedAvg"),
    "TERM minus FedAvg": ("TERM", "FedAvg"),
    "FedAvg of 0.19 minus FedAvg": ("small step", "FedAvg"),
    "FedAvg of 4000 rounds minus FedAvg": ("FedAvg, 4000 rounds", "FedAvg"),
}
SETTINGS = {
    "FedAvg": "`method=fedavg`",
    "FedAvg, 6 times its length": "`method=fedavg server-learning-rate=6`",
    PRINTED: "as the file is",
    EQUAL: "`temperature=10`",
    "FedEBA+, a sixth of the length": "`server-learning-rate=0.166667`",
    "FedEBA+, a sixth of the rate": "`learning-rate=0.016667`",
}
PLACEBO_SETTINGS = {
    "FedAvg": "`method=fedeba temperature=1000000`",
    PRINTED: "`temperature=0.1000001`",
}
EXTRA_COST = {15: 0.486, 30: 0.377, 45: 0.042}
"""Table 3 of the paper, Fashion-MNIST: extra cost as a part of all traffic."""


def seeds(runs, column="mean"):
    return [runs[seed][column] for seed in sorted(runs)]


def short(values, digits=1):
    """Return a difference without its seeds."""
    return difference(values, digits).partition(" (")[0]


def placebos():
    """Return what the placebos change, by the arm that they repeat."""
    return {
        name: FIGURE.paired(FAST[label], ARMS[name])
        for name, label in FIGURE.PLACEBOS.items()
    }


def against_fedavg(arm):
    return FIGURE.paired(ARMS[arm], ARMS["FedAvg"])


def steps(arm, column):
    """Return an arm's own numbers, FedAvg's from its placebo, which records them."""
    label = FIGURE.PLACEBOS["FedAvg"] if arm == "FedAvg" else FIGURE.ARMS[arm][0]
    return seeds(STEPS[label], column)


def methods():
    for name, (title, *published) in METHODS.items():
        ours = [spread(seeds(LONG[name], column), digits) for column, digits in COLUMNS]
        ours.append(spread(seeds(LONG[name], "best_5"), 1))
        yield row(title, *ours, *published)


def comparisons():
    for title, (first, second) in COMPARED.items():
        found = (FIGURE.paired(LONG[first], LONG[second], column) for column, _ in COLUMNS)
        yield row(
            title,
            *(difference(v, digits) for v, (_, digits) in zip(found, COLUMNS, strict=True)),
        )


def arms():
    floor = [value for values in placebos().values() for value in values]
    for name, setting in SETTINGS.items():
        own = name != "FedAvg, 6 times its length"
        yield row(
            name,
            setting,
            ", ".join(f"{value:.1f}" for value in seeds(ARMS[name])),
            "" if name == "FedAvg" else short(against_fedavg(name)),
            "" if name == "FedAvg" else verdict(against_fedavg(name), floor),
            f"{fmean(steps(name, 'update_norm')):.2f}" if own else "",
            f"{fmean(steps(name, 'effective_clients')):.1f}" if own else "",
        )


def placebo_rows():
    for name, label in FIGURE.PLACEBOS.items():
        yield row(
            f"placebo of {name}",
            PLACEBO_SETTINGS[name],
            ", ".join(f"{value:.1f}" for value in seeds(FAST[label])),
            difference(placebos()[name]),
        )


def theta():
    for angle, cost in EXTRA_COST.items():
        found, (long,) = THETA[f"theta={angle}"], LONG[f"theta {angle}"].values()
        yield row(
            str(angle),
            ", ".join(f"{value:.0f}" for value in seeds(found, "gradient_rounds")),
            ", ".join(f"{value:.1f}" for value in seeds(found, "accuracy")),
            f"{100 * cost / (1 - cost):.1f} %",
            *(f"{long[column]:.{digits}f}" for column, digits in COLUMNS),
        )


def default_alpha():
    for label, found in FIGURE.by_seed("default_alpha_by_seed").items():
        means = seeds(found)
        listed = ", ".join(f"{value:.1f}" for value in means)
        yield row(label.removeprefix("alpha="), f"{fmean(means):.1f}", listed)


def defaults(problem, rows):
    """Return the table of a problem's arms beside FedAvg, on validation or test rows."""
    start = f"{problem}, {rows}: "
    found = {
        label.removeprefix(start): runs
        for label, runs in FIGURE.by_seed("defaults_by_seed").items()
        if label.startswith(start)
    }
    for arm, runs in found.items():
        columns = (("mean", 2), ("worst_10", 2), ("variance", 0))
        cells = []
        for column, digits in columns:
            cells.append(f"{fmean(seeds(runs, column)):.{digits}f}")
            minus = FIGURE.paired(runs, found["FedAvg"], column)
            cells.append("" if arm == "FedAvg" else short(minus, digits))
        yield row(arm, *cells[:5])


def all_defaults():
    for problem in ("quickstart", "Fashion-MNIST"):
        for rows in ("validation", "test"):
            yield from defaults(problem, rows)


TABLES = (methods, comparisons, arms, placebo_rows, theta, default_alpha, all_defaults)


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_are_what_the_csvs_give(table):
    assert not absent(PAGE, table())


def sentences():
    low, high = interval(against_fedavg(PRINTED))
    mean = fmean(against_fedavg(PRINTED))
    yield f"{mean:+.1f} points [{low:+.1f}, {high:+.1f}]"
    ended = ", ".join(f"{value:.1f}" for value in seeds(LONG["FedEBA+"]))
    yield f"after 2000 rounds it is at {ended} %"
    largest = max(abs(v) for values in placebos().values() for v in values)
    yield f"({largest:.2f} points)"
    pairs = zip(steps(PRINTED, "update_norm"), steps("FedAvg", "update_norm"), strict=True)
    longer = [ours / theirs for ours, theirs in pairs]
    yield f"{min(longer):.1f} to {max(longer):.1f} times as long as FedAvg's"
    yield f"over {fmean(steps(EQUAL, 'effective_clients')):.1f} of ten clients"
    gap = 86.49 - fmean(seeds(LONG["FedAvg"]))
    yield f"{gap:.2f} points below the published accuracy"
    yield f"{fmean(seeds(LONG['FedAvg'], 'variance')) / 62.44:.1f} times the published one"
    sent = {arm: set(steps(arm, "bytes_a_round")) for arm in ("FedAvg", PRINTED)}
    (ours,), (theirs,) = sent[PRINTED], sent["FedAvg"]
    yield f"really sent in training is {ours / theirs:.1f} times FedAvg's"
    for name in ("theta 45", "small step"):
        yield f"{LONG[name][0]['mean']:.2f} % with variance {LONG[name][0]['variance']:.1f}"


def test_the_sentences_are_what_the_csvs_give():
    assert not absent(PAGE, sentences())


def test_the_answer_and_the_figure_come_first():
    answer, _, rest = PAGE.partition("## ")
    assert "![" in answer and "(figure.png)" in answer
    assert "Amendment" not in answer and "Amendment 3, 2026-11-22" in rest
    assert (FOLDER / "figure.png").stat().st_size < 100_000


def test_rivals_without_runs_are_named():
    run = {"qffl", "fedfv", "term"}
    rivals = {path.stem for path in (FOLDER / "baselines").glob("*.toml")} - run
    assert len(rivals) == 6
    assert not absent(PAGE, ["six rivals have files here and no runs"])
    assert not absent(PAGE, [f"`{rival}.toml`" for rival in rivals])
