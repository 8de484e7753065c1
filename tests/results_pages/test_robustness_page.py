"""What the page on robust averages says of its runs is what the CSVs have."""

import importlib.util
from statistics import fmean
from types import ModuleType

import pytest

from tests.results_pages.recomputed import SIMULATIONS, absent, interval

FOLDER = SIMULATIONS / "robustness"
DOCS = SIMULATIONS.parent / "docs" / "how-to"
PAGE = (DOCS / "robustness.md").read_text()
DATA = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
SEEDS = range(1, 6)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = script("table")


@pytest.mark.parametrize("data", DATA)
def test_all_runs_ended_and_stand_on_the_page(data: str) -> None:
    assert set(TABLE.read(data)) == set(TABLE.points())
    assert not absent(PAGE, TABLE.lines(data))


def gained(
    data: str,
    rule: tuple[str, str],
    attacks: tuple[str, ...],
    over: tuple[str, str] = ("mean", "none"),
) -> str:
    """A rule minus another, over attacks: mean and 95 % interval over the seeds."""
    known = TABLE.read(data)
    values = [
        100
        * fmean(
            known["fedavg", *rule, a, s] - known["fedavg", *over, a, s] for a in attacks
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


def test_the_two_best_rules_are_compared_with_each_other() -> None:
    """The page once called one of them best, by means alone."""
    krum, centre = ("multi-krum", "nearest"), ("geometric-median", "none")
    lines = []
    for data in DATA:
        five, *each = (
            gained(data, krum, attacks, centre)
            for attacks in (TABLE.ATTACKS[1:], *((a,) for a in TABLE.ATTACKS[1:]))
        )
        honest = gained(data, krum, ("none",), centre)
        lines.append(f"| {DATA[data]} | {' | '.join((five, *each, honest))} |")
    assert not absent(PAGE, lines)
