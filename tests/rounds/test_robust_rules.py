"""Robust rules: numbers by hand, symmetries, and how far a liar moves them."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.vectors import Vector
from fedsuite.rounds import robust_rules
from fedsuite.rounds.robust_rules import (
    geometric_median,
    krum_scores,
    krum_selection,
    mean_of,
    nearest_mixture,
    squared_distances,
    trimmed_mean,
    weighted_median,
    weiszfeld_step,
)

POINTS = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [2.0, 1.0], [10.0, -10.0]])
"""Four honest clients, whose mean is (1.5, 0.5), and a liar."""

EQUAL = np.ones(5)


def multi_krum(points: Vector, weights: Vector, liars: int) -> Vector:
    kept = krum_selection(points, liars)
    return mean_of(points[kept], weights[kept])


def mixed_median(points: Vector, weights: Vector, liars: int) -> Vector:
    return weighted_median(nearest_mixture(points, weights, liars), weights)


Rule = Callable[[Vector, Vector, int], Vector]

RULES: dict[str, Rule] = {
    "median": lambda points, weights, _: weighted_median(points, weights),
    "trimmed-mean": trimmed_mean,
    "geometric-median": lambda points, weights, _: geometric_median(points, weights),
    "multi-krum": multi_krum,
    "mixed-median": mixed_median,
}


@pytest.mark.parametrize(
    ("rule", "centre"),
    [
        ("median", (2, 0)),
        ("trimmed-mean", (5 / 3, 1 / 3)),
        ("geometric-median", (1.769708, 0.198935)),
        ("multi-krum", (1.5, 0.5)),
        ("mixed-median", (1.5, 0.5)),
    ],
)
def test_golden_numbers(rule: str, centre: tuple[float, float]) -> None:
    found = RULES[rule](POINTS, EQUAL, 1)
    np.testing.assert_allclose(found, centre, atol=1e-6)


def test_weiszfelds_first_steps_from_the_mean() -> None:
    centre = POINTS.mean(axis=0)
    for expected in [(2.049294, -0.176215), (1.881867, 0.086924), (1.868819, 0.111297)]:
        centre = weiszfeld_step(POINTS, EQUAL, centre)
        np.testing.assert_allclose(centre, expected, atol=1e-6)


def test_krums_scores_by_hand() -> None:
    """With two neighbours: 1 + 1 for each corner; 181 + 164 for the liar."""
    np.testing.assert_array_equal(krum_scores(POINTS, 1), [2, 2, 2, 2, 345])
    line = np.array([[0.0], [1], [2], [3], [4], [5], [100]])
    np.testing.assert_array_equal(krum_scores(line, 1), [30, 15, 10, 10, 15, 30, 37254])


def test_mixing_by_hand() -> None:
    mixed = nearest_mixture(POINTS, EQUAL, 1)
    np.testing.assert_allclose(mixed, [[1.5, 0.5]] * 4 + [[3.75, -2.25]])


def test_weights_enter() -> None:
    """Who has more than half of the weight is the median, and nearly the mean."""
    claimed = np.array([1.0, 1, 1, 1, 6])
    np.testing.assert_allclose(geometric_median(POINTS, claimed), [10, -10], atol=1e-5)
    np.testing.assert_array_equal(weighted_median(POINTS, claimed), [10, -10])
    np.testing.assert_allclose(trimmed_mean(POINTS, claimed, 0), mean_of(POINTS, claimed))
    line = np.array([[0.0], [1.0], [5.0]])
    assert weighted_median(line, np.array([0.1, 0.4, 0.5])) == 3.0
    # Five times 0.1 is half of ten times 0.1, but for rounding.
    tens = np.arange(10.0).reshape(10, 1)
    assert weighted_median(tens, np.full(10, 0.1)) == 4.5


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_columns_are_taken_by_parts(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).normal(size=(7, 11))
    # Backwards, so that memory of this result is no right answer to the next question.
    whole = RULES[rule](points[:, ::-1], np.ones(7), 2)[::-1]
    monkeypatch.setattr(robust_rules, "_COLUMNS", 4)
    np.testing.assert_array_equal(RULES[rule](points, np.ones(7), 2), whole)


@pytest.mark.parametrize("liars", [2, 3])
def test_too_few_clients_are_refused(liars: int) -> None:
    with pytest.raises(ValueError, match=f"5 clients: expected at least 2 x {liars} \\+ 3"):
        krum_scores(POINTS, liars)
    with pytest.raises(ValueError, match="5 clients: expected more than 2 x 3"):
        trimmed_mean(POINTS, EQUAL, 3)


def clouds(low: float = -100, high: float = 100) -> st.SearchStrategy[Vector]:
    """Draw 7 clients' vectors of 3 whole numbers, so that sums are exact."""
    numbers = st.integers(int(low), int(high)).map(float)
    rows = st.lists(numbers, min_size=3, max_size=3)
    return st.lists(rows, min_size=7, max_size=7).map(np.array)


@pytest.mark.parametrize("rule", RULES)
@given(points=clouds(), seed=st.integers(0, 100))
def test_order_of_clients_and_origin_do_not_matter(
    rule: str, points: Vector, seed: int
) -> None:
    # Of equally good clients Krum takes the first: a little noise leaves none.
    points = points + np.random.default_rng(seed).normal(0, 1e-3, points.shape)
    weights = np.random.default_rng(seed).uniform(0.5, 2, 7)
    found = RULES[rule](points, weights, 2)
    order = np.random.default_rng(seed).permutation(7)
    again = RULES[rule](points[order], weights[order], 2)
    np.testing.assert_allclose(again, found, atol=1e-5)
    origin = np.array([1000.0, -50.0, 3.0])
    moved = RULES[rule](points + origin, weights, 2)
    np.testing.assert_allclose(moved - origin, found, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
@given(points=clouds(), lie=st.sampled_from([1e6, 1e38, -1e38, 1e200]))
def test_two_liars_of_seven_stay_bounded(rule: str, lie: float, points: Vector) -> None:
    points[5:] = lie
    found = RULES[rule](points, np.ones(7), 2)
    honest = points[:5]
    if rule in ("median", "trimmed-mean", "multi-krum"):
        assert (honest.min(axis=0) <= found).all() and (found <= honest.max(axis=0)).all()
    # Of seven points two may lie anywhere: six radii of the honest hold the centre.
    radius = np.sqrt(squared_distances(honest).max())
    assert np.sqrt(np.square(found - honest.mean(axis=0)).sum()) <= 6 * radius + 1e-6


@pytest.mark.parametrize("rule", RULES)
@given(value=st.floats(-1e30, 1e30), seed=st.integers(0, 9))
def test_equal_models_come_back_bit_for_bit(rule: str, value: float, seed: int) -> None:
    points = np.full((7, 3), value)
    weights = np.random.default_rng(seed).uniform(0.1, 9, 7)
    np.testing.assert_array_equal(RULES[rule](points, weights, 2), points[0])


@given(points=clouds(-1, 1))
def test_small_differences_of_large_models_are_seen(points: Vector) -> None:
    """Exact in float64; by products of float32 they are rounding."""
    near = (points * 2.0**-10 + 1000).astype(np.float32).astype(np.float64)
    expected = squared_distances(points) * 2.0**-20
    np.testing.assert_array_equal(squared_distances(near), expected)
