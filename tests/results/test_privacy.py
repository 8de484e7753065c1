"""What an attacker learns: epsilon of two Gaussians, curves of attacks, LiRA."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedsuite.results.privacy import (
    Attack,
    Cosines,
    Findings,
    NoiseAudit,
    Scores,
    roc,
)

DIMENSION = 400


def at_distance(mu: float, dimension: int = DIMENSION) -> Cosines:
    """Return cosines whose means are mu deviations apart; 9 of each, of deviation 1/20."""
    pattern = np.array([-1.0, 0.0, 1.0] * 3)
    pattern /= pattern.std(ddof=1)
    return Cosines((mu + pattern) / 20, pattern / 20, dimension)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [(1.0, 1e-5, 4.377), (2.0, 1e-5, 9.997), (1 / 3.730632, 1e-5, 1.0), (0.0, 1e-5, 0.0)],
)
def test_epsilon_is_that_of_the_gaussian_mechanism(
    mu: float, delta: float, epsilon: float
) -> None:
    """Of multiplier 1 / mu: numbers of dp-accounting, and of Balle and Wang's program."""
    assert at_distance(mu).epsilon(delta).value == pytest.approx(epsilon, abs=6e-4)


@settings(max_examples=20)
@given(st.floats(0.3, 4.0), st.floats(1e-6, 1e-2))
def test_epsilon_by_the_two_densities(mu: float, delta: float) -> None:
    """Delta is the mass by which one density stands above e^epsilon times the other."""
    epsilon = at_distance(mu).epsilon(delta).value
    grid = np.linspace(-12.0, 18.0, 20_001)
    above = norm.pdf(grid, mu) - math.exp(epsilon) * norm.pdf(grid)
    mass = np.trapezoid(np.maximum(above, 0.0), grid)
    assert mass == pytest.approx(delta, rel=1e-2) if epsilon else mass <= delta


def test_the_interval_is_of_the_means_standard_errors() -> None:
    known, measured = at_distance(2.0).mu(), at_distance(2.0, 0).mu()
    # Of 9 canaries one third of a deviation; beside 9 unused directions root 2 as much.
    assert known.value == measured.value == pytest.approx(2.0)
    assert known.high - known.value == pytest.approx(1.959964 / 3)
    assert measured.value - measured.low == pytest.approx(1.959964 * math.sqrt(2) / 3)
    epsilon = at_distance(2.0).epsilon(1e-5)
    assert epsilon.low < epsilon.value < epsilon.high
    assert epsilon.low == pytest.approx(at_distance(known.low).epsilon(1e-5).value)


def test_the_null_of_the_largest_is_measured() -> None:
    shifted = Cosines(np.array([0.5, 0.7]), np.array([0.1, 0.3, 0.2]), 0)
    assert shifted.mu().value == pytest.approx((0.6 - 0.2) / 0.1)
    assert list(shifted.null) == pytest.approx([0.2, 0.1])
    assert Cosines(shifted.used, shifted.unused, 100).null == (0.0, 0.1)


@pytest.mark.parametrize(
    ("mu", "words"),
    [(0.5, "lies below"), (2.0, "contains"), (9.0, "less than the accountant was told")],
)
def test_the_sentence(mu: float, words: str) -> None:
    cosines = at_distance(mu)
    audit = NoiseAudit(cosines, cosines, 1, clients=5, delta=1e-5, accounted=9.997)
    assert words in audit.sentence()
    assert list(audit.releases) == ["final model"]
    rows = Findings(audit, {}).table().rows
    assert [row[-1] for row in rows] == [9.997, 0.0, 1.0]


# Curves


def test_a_curve_by_hand() -> None:
    scores = np.array([4.0, 3.0, 3.0, 2.0, 1.0])
    members = np.array([True, False, True, False, True])
    curve = roc(scores, members)
    assert curve.false_positives.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert curve.true_positives.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 1])
    # Pairs: 4 beats 2; 3 beats one and draws one; 1 beats none, of 6.
    assert curve.area == pytest.approx(3.5 / 6)
    assert curve.at(0.49) == pytest.approx(1 / 3)
    assert curve.at(0.5) == pytest.approx(2 / 3)


ROWS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30)


@given(ROWS)
def test_the_area_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    scores, members = np.array(rows, dtype=float)[:, 0], np.array([m for _, m in rows])
    if members.all() or not members.any():
        return
    inside, outside = scores[members], scores[~members]
    above = inside[:, None] > outside
    same = inside[:, None] == outside
    curve = roc(scores, members)
    assert curve.area == pytest.approx(float((above + same / 2).mean()))
    assert np.all(np.diff(curve.false_positives) >= 0)
    assert np.all(np.diff(curve.true_positives) >= 0)
    turned = roc(-scores, members)
    assert turned.area == pytest.approx(1 - curve.area)
    assert roc(np.exp(scores), members).area == curve.area
    twice = roc(np.repeat(scores, 2), np.repeat(members, 2))
    assert roc(scores, members, np.full(len(rows), 2.0)).area == pytest.approx(twice.area)


# LiRA


def drawn(runs: int, rows: int, effect: float) -> Scores:
    """Return scores of rows of unlike difficulty, which training raises."""
    stream = np.random.default_rng(0)
    members = stream.random((runs, rows)) < 0.5
    noise = stream.normal(size=(runs, rows))
    return Scores(5 * stream.normal(size=rows) + noise + effect * members, members)


def test_lira_by_its_equation() -> None:
    scores = drawn(6, 40, 1.0)
    run, values = 2, scores.scores
    others = [k for k in range(6) if k != run]
    sides = []
    for side in (scores.members, ~scores.members):
        held = [[values[k, row] for k in others if side[k, row]] for row in range(40)]
        squares = sum(float(np.var(h) * len(h)) for h in held if h)
        deviation = math.sqrt(squares / sum(len(h) - 1 for h in held if h))
        at = values[run]
        means = [np.mean(h) if h else math.nan for h in held]
        sides.append(norm.logpdf(at, means, deviation))
    expected = np.subtract(*sides)
    attack = scores.likelihood_ratio()
    known = np.isfinite(expected)
    assert 30 < known.sum() < 41
    alone = scores.ratios()[run]
    np.testing.assert_allclose(alone[known], expected[known])
    assert np.isnan(alone[~known]).all()
    assert attack.area.value > 0.6


def test_lira_finds_what_one_bar_does_not() -> None:
    scores = drawn(8, 500, 2.0)
    bar, ratio = scores.threshold(), scores.likelihood_ratio()
    assert bar.area.value < 0.65 < 0.85 < ratio.area.value
    assert ratio.area.low < ratio.area.value < ratio.area.high
    assert ratio.true_positives[0].value > 5 * bar.true_positives[0].value


def test_without_an_effect_both_guess() -> None:
    scores = drawn(8, 500, 0.0)
    for attack in (scores.threshold(), scores.likelihood_ratio()):
        assert attack.area.low < 0.5 < attack.area.high
        assert attack.true_positives[0].low < 0.03


def test_rows_without_scores_are_left_out() -> None:
    scores = drawn(4, 60, 1.0)
    with_gaps = scores.scores.copy()
    with_gaps[:, 50:] = np.nan
    whole = Attack.of(scores.scores[:, :50], scores.members[:, :50])
    assert Attack.of(with_gaps, scores.members).area.value == whole.area.value
