"""What the page on robust averages says of its runs is what the CSVs have."""

import csv
import importlib.util
from statistics import fmean
from types import ModuleType

import pytest

from tests.results_pages.recomputed import SIMULATIONS, absent, interval

FOLDER = SIMULATIONS / "robustness"
PAGE = (SIMULATIONS.parent / "docs" / "how-to" / "robustness.md").read_text()
DATA = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
SEEDS = range(1, 6)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("table", FOLDER / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = script()


@pytest.mark.parametrize("data", DATA)
def test_all_runs_ended_and_stand_on_the_page(data: str) -> None:
    assert set(TABLE.read(data)) == set(TABLE.points())
    assert not absent(PAGE, TABLE.lines(data))


def gained(data: str, rule: tuple[str, str], attacks: tuple[str, ...]) -> str:
    """A rule minus the mean, over attacks: mean and 95 % interval over the seeds."""
    known = TABLE.read(data)
    values = [
        100
        * fmean(
            known["fedavg", *rule, a, s] - known["fedavg", "mean", "none", a, s]
            for a in attacks
        )
        for s in SEEDS
    ]
    low, high = interval(values)
    return f"{fmean(values):+.1f} [{low:+.1f}, {high:+.1f}]"


@pytest.mark.parametrize("data", DATA)
def test_the_advice_is_what_the_runs_give(data: str) -> None:
    lines = []
    for rule in (
        ("multi-krum", "nearest"),
        ("geometric-median", "none"),
        ("median", "none"),
    ):
        attacked, honest = (gained(data, rule, a) for a in (TABLE.ATTACKS[1:], ("none",)))
        name = rule[0] + (" after mixing" if rule[1] != "none" else "")
        lines.append(f"| {DATA[data]} | {name} | {attacked} | {honest} |")
    assert not absent(PAGE, lines)


def test_one_liar_is_bounded_in_every_method() -> None:
    with (FOLDER / "results" / "one_liar.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert not [row for row in rows if row["accuracy"].startswith("ended")]
    weights = [
        float(r["largest_weight"])
        for r in rows
        if r["lie"] in ("1e6 examples", "loss 10") and r["largest_weight"]
    ]
    honest = {row["method"]: float(row["accuracy"]) for row in rows if row["lie"] == "none"}
    changes = [100 * (float(row["accuracy"]) - honest[row["method"]]) for row in rows]
    assert not absent(
        PAGE,
        [
            f"{len(honest)} methods",
            f"at most {max(weights):.2f} of the model",
            f"between {min(changes):+.1f} and {max(changes):+.1f} points",
        ],
    )
