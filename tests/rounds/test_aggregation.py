"""Steps towards an aggregate: dtypes, integer arrays, arrays without dimensions."""

import numpy as np
import pytest

from fedsuite.messages.records import Arrays
from fedsuite.rounds.aggregation import (
    apply_update,
    mean_metrics,
    step_towards,
    update_of,
    weighted_mean,
    weighted_sum,
)


def sample(weight: list[float], counter: int) -> Arrays:
    return {"weight": np.array(weight, np.float32), "counter": np.array(counter)}


def test_a_part_of_the_way_and_the_whole_mean_for_integers() -> None:
    stepped = step_towards(sample([1.0, 2.0], 4), sample([3.0, 0.0], 9), 0.25)
    np.testing.assert_array_equal(stepped["weight"], np.array([1.5, 1.5], np.float32))
    assert stepped["weight"].dtype == np.float32
    assert (stepped["counter"], stepped["counter"].dtype) == (9, np.int64)


def test_rate_1_is_the_target_bit_for_bit() -> None:
    """1e16 + (1 - 1e16) is 0 in float64: the difference would lose the target."""
    arrays, target = {"x": np.array([1e16])}, {"x": np.array([1.0])}
    assert step_towards(arrays, target, 1.0)["x"][0] == 1.0
    assert apply_update(arrays, update_of(arrays, target), 1.0)["x"][0] != 1.0


def test_weighted_sum_is_float64_and_not_normalised() -> None:
    found = weighted_sum(iter([sample([1.0, 2.0], 1), sample([4.0, 0.0], 2)]), [2.0, 0.5])
    np.testing.assert_array_equal(found["weight"], [4.0, 4.0])
    assert found["weight"].dtype == np.float64
    assert found["counter"] == 3.0
    with pytest.raises(ValueError, match="longer"):
        weighted_sum([sample([1.0], 1)], [0.5, 0.5])


def test_arrays_without_dimensions_stay_arrays() -> None:
    mean = weighted_mean([sample([1.0], 4), sample([3.0], 9)], [1.0, 1.0])
    assert mean is not None
    for arrays in (mean, step_towards(sample([1.0], 4), mean, 0.5)):
        assert all(isinstance(array, np.ndarray) for array in arrays.values())
    assert mean["counter"] == 6  # 6.5, to the even neighbour


def test_means_of_huge_metrics_are_finite() -> None:
    rows = [{"loss": 1e308, "n": 30.0}, {"loss": 1e308, "n": 10.0}]
    assert mean_metrics(rows, "n") == {"loss": pytest.approx(1e308), "n": 40.0}


def test_a_mean_of_metrics_has_no_order_in_its_bits() -> None:
    rows = [{"acc": acc, "n": 10.0} for acc in (0.9, 0.9, 0.9, 0.2)]
    assert mean_metrics(rows, "n")["acc"] == mean_metrics(rows[::-1], "n")["acc"] == 0.725


def test_statistics_take_the_whole_way_at_any_rate() -> None:
    sent = {"w": np.ones(1), "bn.running_var": np.full(1, 4.0), "count": np.array(7)}
    mean = {"w": np.zeros(1), "bn.running_var": np.full(1, 1.2), "count": np.array(9)}
    for rate in (0.0, 0.5, 2.0):
        made = step_towards(sent, mean, rate)
        assert made["bn.running_var"].tobytes() == mean["bn.running_var"].tobytes()
        assert made["count"] == 9
        assert made["w"] == pytest.approx(1.0 - rate)
