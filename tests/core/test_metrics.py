"""Fairness metrics: golden numbers, hand-checked cases, and identities."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsuite.core.metrics import (
    collaborative_fairness,
    fairness_report,
    interval_over_clients,
    participation_incentive,
)

# Accuracies as they arise: a number of correct samples out of 100 or of 37.
ACCURACIES = st.lists(
    st.integers(0, 100).map(float) | st.integers(0, 37).map(lambda k: 100 * k / 37),
    min_size=1,
    max_size=60,
)


def test_golden_numbers_of_1_to_100():
    report = fairness_report(np.arange(1, 101))
    assert report.num_clients == 100
    assert report.mean == pytest.approx(50.5)
    assert report.variance == pytest.approx(833.25)
    assert report.std == pytest.approx(math.sqrt(833.25))
    assert report.worst_5 == pytest.approx(3.0)
    assert report.best_5 == pytest.approx(98.0)
    assert report.worst_10 == pytest.approx(5.5)
    assert report.best_10 == pytest.approx(95.5)
    assert (report.minimum, report.maximum) == (1, 100)
    assert report.coefficient_of_variation == pytest.approx(0.571605, abs=5e-7)
    assert report.angle == pytest.approx(29.752516, abs=5e-7)
    assert report.kl == pytest.approx(0.188273, abs=5e-7)
    # Sum squared over m times the sum of squares: 5050^2 / (100 * 338350).
    assert report.jain == pytest.approx(5050**2 / (100 * 338350))
    # Of 1..m the Gini coefficient is (m - 1) / (3 m).
    assert report.gini == pytest.approx(99 / 300)


def test_one_client_with_everything_is_the_most_unfair():
    report = fairness_report([0, 0, 0, 80])
    assert report.mean == pytest.approx(20)
    assert report.variance == pytest.approx((3 * 400 + 3600) / 4)
    assert report.angle == pytest.approx(60)
    assert report.kl == pytest.approx(math.log(4))
    assert report.jain == pytest.approx(1 / 4)
    assert report.gini == pytest.approx(3 / 4)
    assert (report.worst_5, report.best_5) == (0, 80)


def test_two_clients_by_hand():
    report = fairness_report([90, 30])
    assert (report.mean, report.variance, report.std) == (60, 900, 30)
    assert report.coefficient_of_variation == pytest.approx(0.5)
    assert report.gini == pytest.approx(0.25)  # mean distance 30 over twice the mean
    assert report.kl == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


@pytest.mark.parametrize("value", [0.0, 0.1, 33.3, 100 * 7 / 37, 100.0])
@pytest.mark.parametrize("num_clients", [1, 3, 10, 49])
def test_equal_accuracies_are_exactly_fair(value, num_clients):
    report = fairness_report([value] * num_clients)
    assert report.mean == report.worst_5 == report.best_10 == value
    assert report.variance == report.std == report.coefficient_of_variation == 0
    assert report.angle == report.kl == report.gini == 0
    assert report.jain == 1


@pytest.mark.parametrize(
    ("num_clients", "count"), [(1, 1), (10, 1), (20, 1), (21, 2), (100, 5), (140, 7)]
)
def test_worst_five_per_cent_is_rounded_up_exactly(num_clients, count):
    accuracies = np.arange(num_clients) / 2
    assert fairness_report(accuracies).worst_5 == accuracies[:count].mean()


@given(ACCURACIES)
def test_identities(accuracies):
    report = fairness_report(accuracies)
    radians = math.radians(report.angle)
    if report.mean > 0:
        assert math.tan(radians) == pytest.approx(report.coefficient_of_variation)
    assert report.jain == pytest.approx(math.cos(radians) ** 2)
    assert report.variance == pytest.approx(np.var(accuracies), abs=1e-9)
    assert 0 <= report.kl <= math.log(len(accuracies)) + 1e-9
    assert 0 <= report.gini <= 1 - 1 / len(accuracies) + 1e-9
    assert (
        report.minimum
        <= report.worst_5
        <= report.worst_10 + 1e-9
        <= report.best_10 + 2e-9
        <= report.best_5 + 3e-9
        <= report.maximum + 4e-9
    )


@given(ACCURACIES.filter(any))
def test_gini_is_half_the_relative_mean_difference(accuracies):
    differences = np.abs(np.subtract.outer(accuracies, accuracies)).mean()
    expected = differences / (2 * np.mean(accuracies))
    assert fairness_report(accuracies).gini == pytest.approx(expected, abs=1e-12)


@given(ACCURACIES, st.randoms(use_true_random=False))
def test_order_of_clients_does_not_matter(accuracies, random):
    shuffled = random.sample(accuracies, len(accuracies))
    assert fairness_report(shuffled) == fairness_report(accuracies)


@given(ACCURACIES.filter(any), st.sampled_from([0.01, 0.5]))
def test_relative_metrics_do_not_depend_on_scale(accuracies, scale):
    whole, scaled = (
        fairness_report(accuracies),
        fairness_report(np.array(accuracies) * scale),
    )
    for name in ("coefficient_of_variation", "angle", "kl", "jain", "gini"):
        assert getattr(scaled, name) == pytest.approx(getattr(whole, name), abs=1e-9)
    assert scaled.variance == pytest.approx(scale**2 * whole.variance)


def test_small_kl_is_half_the_squared_coefficient_of_variation():
    report = fairness_report([70, 71, 69, 70.5])
    assert report.kl == pytest.approx(report.coefficient_of_variation**2 / 2, rel=1e-2)


@pytest.mark.parametrize(
    ("accuracies", "message"),
    [
        ([], r"shape \(0,\)"),
        ([[1.0, 2.0]], r"shape \(1, 2\)"),
        (50.0, r"shape \(\)"),
        ([1.0, math.nan], "nan at position 1 is not finite"),
        ([math.inf], "inf at position 0"),
        ([3.0, -1.0], "-1 at position 1 is outside"),
        ([100.5], "100.5 at position 0 is outside"),
    ],
)
def test_bad_accuracies_are_refused_in_one_line(accuracies, message):
    with pytest.raises(ValueError, match=message) as caught:
        fairness_report(accuracies)
    assert "\n" not in str(caught.value)


def test_report_as_dict_names_each_metric():
    values = fairness_report([10, 20]).as_dict()
    assert values["mean"] == 15
    assert next(iter(values)) == "num_clients"
    assert len(values) == 15


def test_collaborative_fairness_by_hand():
    assert collaborative_fairness([1, 2, 3], [5, 7, 9]) == pytest.approx(100)
    assert collaborative_fairness([1, 2, 3], [9, 7, 5]) == pytest.approx(-100)
    # Deviations (-1, 0, 1) and (-1, 2, -1) are orthogonal.
    assert collaborative_fairness([1, 2, 3], [1, 4, 1]) == pytest.approx(0)
    # Deviations (-1.5, -.5, .5, 1.5) and (-1.5, .5, -.5, 1.5): 4 / 5.
    assert collaborative_fairness([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(80)


@pytest.mark.parametrize(
    ("standalone", "federated"),
    [([0.1] * 3, [1, 2, 3]), ([1, 2, 3], [0.7] * 3), ([1], [2])],
)
def test_collaborative_fairness_of_a_constant_is_undefined(standalone, federated):
    assert collaborative_fairness(standalone, federated) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=20))
def test_collaborative_fairness_is_pearson(pairs):
    x, y = (np.array(column) / 50 for column in zip(*pairs, strict=True))
    value = collaborative_fairness(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert value is None
    else:
        assert value == pytest.approx(100 * stats.pearsonr(x, y).statistic, abs=1e-6)
        assert value == pytest.approx(collaborative_fairness(100 * x, 3 * y + 1), abs=1e-6)


def test_collaborative_fairness_of_different_lengths_is_refused():
    with pytest.raises(ValueError, match="of 2 and 3 clients"):
        collaborative_fairness([1, 2], [1, 2, 3])


ALONE = (0.9, 0.85, 0.8, 0.7, 0.6)
TOGETHER = (0.95, 0.93, 0.92, 0.90, 0.89)


def test_golden_collaborative_fairness():
    """The numbers of FedAKD's specification."""
    assert collaborative_fairness(ALONE, TOGETHER) == pytest.approx(97.39499, abs=1e-5)
    reverse = collaborative_fairness(ALONE, TOGETHER[::-1])
    assert reverse == pytest.approx(-98.26458, abs=1e-5)


def test_interval_over_clients_by_hand():
    """atanh(0.9739499) = 2.163885, plus and minus 1.959964 / sqrt(5 - 3)."""
    low, high = interval_over_clients(ALONE, TOGETHER)
    assert low == pytest.approx(100 * math.tanh(2.163885 - 1.385904), abs=1e-3)
    assert high == pytest.approx(100 * math.tanh(2.163885 + 1.385904), abs=1e-3)


def test_an_interval_is_of_four_clients_that_differ():
    assert interval_over_clients(ALONE[:3], TOGETHER[:3]) is None
    assert interval_over_clients([0.5] * 5, TOGETHER) is None
    assert interval_over_clients(ALONE, ALONE) == (pytest.approx(100), pytest.approx(100))


def test_participation_incentive_counts_ties():
    assert participation_incentive([0.5, 0.6, 0.7, 0.8], [0.5, 0.5, 0.9, 0.9]) == 0.75
    with pytest.raises(ValueError, match="of 1 and 2 clients"):
        participation_incentive([0.5], [0.5, 0.6])
