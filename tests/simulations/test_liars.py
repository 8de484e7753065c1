"""The search for lies: what it measures, what it reads of the code, and a sample of it."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.messages.records import TRAIN
from fedsuite.rounds import guard
from fedsuite.strategies.fair.term import TERM
from simulations.liars import tables
from simulations.liars.lies import ABSENT, ALL, Act, Lie, Target, lied_counts
from simulations.liars.runs import SETTINGS, Outcome, absent, play
from simulations.liars.search import AIMS, Climb, grid_of, is_averaging, search, skipped
from simulations.liars.thresholds import thresholds

DIGITS = SETTINGS[0]
SAMPLE = [method for method in METHODS.ours if is_averaging(method)][::20]
"""Every twentieth method that averages models: the others take longer."""


ROOT = Path(__file__).parents[2]


def share_of(lie: str, **changes: Value) -> Outcome:
    """Run FedAvg for two rounds with a liar whose share is measured."""
    keys = {name.replace("_", "-"): value for name, value in changes.items()}
    told = {"num-rounds": 2, **keys}
    return play("fedavg", DIGITS, Lie.parse(f"{lie}; probe"), changes=told)


def test_the_probe_measures_each_clients_share() -> None:
    """FedAvg's shares are those of the examples, to six digits."""
    outcome = share_of("none")
    assert not outcome.ended
    measured = [outcome.shares[k] for k in range(5)]
    assert np.allclose(measured, outcome.sizes, atol=1e-6)


def test_the_search_sees_what_the_guard_is_there_for() -> None:
    """Without the guard a claim of 1e6 medians owns the model."""
    lie = "train metric num-examples: times 1e+06 every"
    free = {"max_examples": "off", "max_client_weight": 1.0}
    assert share_of(lie, **free).share > 0.99
    assert share_of(lie).share < 0.5


def test_every_threshold_of_the_code_is_tried_from_both_sides() -> None:
    found = thresholds(TERM(num_clients=5))
    declared = {
        value
        for name, value in vars(guard).items()
        if name.isupper() and isinstance(value, float)
    }
    assert declared and declared <= found
    grid = grid_of(found)
    for limit in declared:
        assert {0.99 * limit, 1.01 * limit} <= set(grid)


def test_a_lie_is_what_its_words_say() -> None:
    draws, targets = np.random.default_rng(0), []
    for kind, name in (
        *(("record", "arrays"), ("counts", "table")),
        *(("metric", "loss"), ("reply", "")),
    ):
        targets.append(Target(TRAIN, kind, name))
    climb = Climb(draws, targets, grid_of([100.0]))
    lie = Lie((Act(Target(TRAIN, "metric", ALL), "set", math.nan),), probe=True)
    assert str(Lie.parse(str(lie))) == str(lie)
    assert Lie.parse(str(ABSENT)) == ABSENT
    for _ in range(100):
        lie = climb.neighbour(lie)
        assert str(Lie.parse(str(lie))) == str(lie)


@pytest.mark.parametrize(
    ("form", "c", "expected"),
    [
        ("times", 0.99, [3, 0, 7]),
        ("times", 1e30, [2**32 - 2, 0, 2**32 - 2]),
        ("times", -1.0, [0, 0, 0]),
        ("set", 2.97, [3, 3, 3]),
        ("set", math.nan, [0, 0, 0]),
        ("one", 1.0, [0, 0, 10]),
        ("reversed", 1.0, [7, 0, 3]),
        ("stale", 1.0, [1, 2, 3]),
    ],
)
def test_counts_are_lied_about(form: str, c: float, expected: list[int]) -> None:
    """And nothing else of their record; the dtype is what the server asks for."""
    table = {"counts": np.array([3, 0, 7], np.uint32), "rows": np.ones((3, 2), np.float32)}
    before = {"counts": np.array([1, 2, 3], np.uint32)}
    lied = lied_counts(table, Act(Target(TRAIN, "counts", ALL), form, c), before)
    assert lied.keys() == {"counts"} and lied["counts"].dtype == np.uint32
    assert lied["counts"].tolist() == expected


def test_the_search_begins_with_counts_where_there_are_any() -> None:
    targets = [Target(TRAIN, kind, "table") for kind in ("record", "counts")]
    for number in (1, 2):
        climb = Climb(np.random.default_rng(0), targets[:number], grid_of([100.0]))
        kinds = [act.target.kind for act in climb.first("accuracy", [100.0]).acts]
        assert kinds == ["record", "counts"][:number]


@pytest.mark.nightly
def test_every_method_of_the_registry_is_searched() -> None:
    """None is listed by hand: what has no rows has nothing to search."""
    path = tables.csv_of("after")
    if not path.exists():
        pytest.skip("python -m simulations.liars search")
    missing = set(METHODS.ours) - {row["method"] for row in tables.read(path)}
    left = [method for method in missing if not skipped(method)]
    assert not left, "python -m simulations.liars search"


@pytest.mark.parametrize("method", SAMPLE)
def test_a_sample_of_the_search(method: str) -> None:
    [found] = search(method, runs=1)
    assert not list(tables.beyond_what_holds(tables.row_text(found)))


def test_no_row_of_the_search_is_beyond_what_holds() -> None:
    """Cyclic hands the model on: who has it last owns it."""
    rows = tables.read(tables.csv_of("after"))
    beyond = {row["method"] for row in rows if list(tables.beyond_what_holds(row))}
    assert beyond <= {"cyclic"}


def test_the_worst_of_a_methods_rows_is_told() -> None:
    row = {
        "method": "fedavg",
        "seed": "0",
        "run": "1",
        "setting": "10 classes",
        "lie": "none",
        "share": "0.41",
        "size_share": "0.20",
        "lost": "10.1",
        "ended": "error: x",
        "named": "suspected-reply",
        "first_suspect": "liar",
    }
    told = tables.violations([row])
    assert [any(word in line for line in told) for word in ("0.41", "ended", "named")]
    assert len(told) == 4
    assert not tables.violations(
        [{**row, "share": "0.40", "lost": "9.9", "ended": "", "named": ""}]
    )
    assert "| 0.41 | 0.20 | +10.1 | yes | yes | 0: 1 |" in tables.lines([row])[-1]
    assert set(AIMS) == {"share", "accuracy", "end"}


def test_who_stands_out_is_told_by_runs_and_by_those_that_had_an_effect() -> None:
    row = {"share": "0.20", "size_share": "0.20", "lost": "0.0", "ended": "", "named": ""}
    row |= {"method": "fedavg", "first_suspect": "nobody"}
    hurt = {**row, "lost": "5.0", "first_suspect": "liar"}
    told = " ".join(tables.told([row, row, hurt]))
    assert "in 3 runs of 1 methods" in told and "nobody in 2" in told
    assert "in 1 runs in which it had an effect" in told
    assert "suspects" not in " ".join(tables.told([row, hurt], ranks=False))


def test_the_page_says_what_the_search_found() -> None:
    page = tables.PAGE.read_text()
    assert tables.written(page) == page, "python -m simulations.liars page"


def test_an_absent_client_is_what_liars_are_compared_with() -> None:
    assert absent("fedavg", DIGITS).weights.keys() == set(range(5)) - set(
        absent("fedavg", DIGITS).liars
    )


def test_the_page_says_how_often_a_rule_mends_the_worst_lie() -> None:
    page = " ".join((ROOT / "docs" / "how-to" / "dishonest_clients.md").read_text().split())
    for rule, sentence in (
        ("multi-krum", "in {} of the {} methods below that take it"),
        ("geometric-median", "does so in {} of {}."),
    ):
        rows = tables.read(tables.csv_of("mends_after"))
        lost = [float(row["lost"]) for row in rows if row["aggregator"] == rule]
        mended = sum(points <= tables.MOST_POINTS for points in lost)
        assert sentence.format(mended, len(lost)) in page
