"""What the page on robust averages says of its runs is what the CSVs have."""

import csv
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


TABLE, ONE_LIAR = script("table"), script("one_liar")


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


def lies() -> dict[str, dict[str, dict[str, str]]]:
    """Return the rows of the runs with one liar, by method and lie."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    with (FOLDER / "results" / "one_liar.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert not row["accuracy"].startswith("ended"), row
            found.setdefault(row["method"], {})[row["lie"]] = row
    return found


def changes(rows: dict[str, dict[str, str]]) -> list[float]:
    """Return how many points of accuracy each lie moves a method."""
    honest = float(rows["none"]["accuracy"])
    return [100 * (float(row["accuracy"]) - honest) for row in rows.values()]


def test_one_liar_is_bounded_in_every_method_that_averages() -> None:
    found = lies()
    averaging = {m: found.get(m, {}) for m in ONE_LIAR.averaging_methods()}
    kinds = (*ONE_LIAR.CLAIMS, *ONE_LIAR.SENT)
    missing = [m for m, rows in averaging.items() if set(rows) != set(kinds)]
    assert not missing, "one_liar.py run: a method of the registry has no rows"
    weights = [
        float(rows[lie]["largest_weight"])
        for rows in averaging.values()
        for lie in ("1e6 examples", "loss 10")
        if rows[lie]["largest_weight"]
    ]
    moved = [change for rows in averaging.values() for change in changes(rows)]
    assert not absent(
        PAGE,
        [
            f"{len(averaging)} methods",
            f"at most {max(weights):.2f} of the model",
            f"between {min(moved):+.1f} and {max(moved):+.1f} points",
        ],
    )


def test_what_one_liar_does_to_distillation_and_rewards() -> None:
    found = lies()
    lines = []
    for method in ONE_LIAR.other_methods():
        rows = found[method]
        _, *moved = changes(rows)
        cells = [100 * float(rows["none"]["accuracy"]), min(moved), max(moved)]
        lines.append("| `{}` | {:.1f} | {:+.1f} | {:+.1f} |".format(method, *cells))
    assert not absent((DOCS / "dishonest_clients.md").read_text(), lines)
