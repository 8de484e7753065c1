"""What the methods with rewards share: shares, angles, parts of a vector, who has what."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.strategies.reward.reputation import (
    cosine,
    merged,
    moved,
    normalised,
    reward_shares,
    shares_of,
    smoothed,
    top_share,
)

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8).map(np.array)


def test_shares_sum_to_1_and_are_equal_of_nothing() -> None:
    assert shares_of(np.array([1.0, 3.0])).tolist() == [0.25, 0.75]
    assert shares_of(np.zeros(4)).tolist() == [0.25] * 4


def test_an_update_is_scaled_to_its_length() -> None:
    assert normalised(np.array([3.0, -4.0]), 0.5) == pytest.approx([0.3, -0.4])
    assert normalised(np.zeros(2), 0.5).tolist() == [0, 0]


def test_cosine() -> None:
    left, right = np.array([3.0, 4.0]), np.array([4.0, 3.0])
    assert cosine(left, right) == pytest.approx(24 / 25)
    assert cosine(left, -right) == pytest.approx(-24 / 25)
    assert cosine(left, np.zeros(2)) == 0


def test_reputation_keeps_its_memory_and_falls_no_lower_than_a_thousandth() -> None:
    old, measured = np.array([0.5, 0.5]), np.array([1.0, 0.5])
    # 0.8 x 0.5 + 0.2 x (1, 0.5) = (0.6, 0.5)
    assert smoothed(old, measured, 0.8) == pytest.approx([6 / 11, 5 / 11])
    bad = smoothed(np.array([0.999, 0.0]), np.array([0.999, -1.0]), 0.5)
    assert bad == pytest.approx([0.999, 0.001])


@given(VALUES, st.data())
def test_smoothed_reputations_sum_to_1_and_follow_the_measurement(
    measured: np.ndarray, data: st.DataObject
) -> None:
    old = np.full(measured.size, 1 / measured.size)
    memory = data.draw(st.floats(0, 1))
    found = smoothed(old, measured, memory)
    assert found.sum() == pytest.approx(1)
    assert (found > 0).all()
    order = np.argsort(measured, kind="stable")
    assert (np.diff(found[order]) >= -1e-12).all()


@given(VALUES, st.floats(1e-3, 1e7))
def test_the_better_client_never_gets_less(values: np.ndarray, altruism: float) -> None:
    reputation = shares_of(np.maximum(values, 1e-3))
    shares = reward_shares(reputation, altruism)
    assert shares.max() == 1
    assert (shares > 0).all()
    assert (np.diff(shares[np.argsort(reputation, kind="stable")]) >= 0).all()


def test_endless_altruism_gives_all_the_same() -> None:
    reputation = shares_of(np.array([1e-3, 0.4, 0.6]))
    assert reward_shares(reputation, 1e7).tolist() == [1, 1, 1]


def test_the_share_is_kept_of_each_layer() -> None:
    vector = np.array([1.0, 9, 8, 7, 0.1, 0.2, 0.3, 0.4, 5])
    half = [0, 9, 8, 0, 0, 0, 0.3, 0.4, 5]
    assert top_share(vector, [4, 4, 1], 0.5).tolist() == half
    assert top_share(vector, [4, 4, 1], 1.0).tolist() == vector.tolist()
    assert top_share(vector, [4, 4, 1], 0.0).tolist() == [0] * 9
    assert np.count_nonzero(top_share(np.arange(1.0, 31), [30], 0.1)) == 3


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1)
)
def test_a_larger_share_holds_the_smaller(
    sizes: list[int], first: float, second: float
) -> None:
    vector = np.random.default_rng(sum(sizes)).normal(size=sum(sizes))
    low, high = sorted((first, second))
    small, large = (top_share(vector, sizes, share) for share in (low, high))
    assert set(np.flatnonzero(small)) <= set(np.flatnonzero(large))
    start = 0
    for size in sizes:
        kept = np.count_nonzero(large[start : start + size])
        assert kept == int(np.ceil(high * size - 1e-9))
        start += size


def test_with_all_clients_in_the_round_their_shares_are_the_reputations() -> None:
    known = {0: 0.9, 1: 0.1}
    assert merged(known, [0, 1], np.array([0.3, 0.7])) == {0: 0.3, 1: 0.7}
    assert merged({}, [0, 1], np.array([0.3, 0.7])) == {0: 0.3, 1: 0.7}


def test_absent_clients_keep_theirs_in_proportion() -> None:
    """Two of four in the round: half for them; the others had 0.2 and 0.3."""
    known = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
    found = merged(known, [0, 3], np.array([0.25, 0.75]))
    assert found == pytest.approx({0: 0.125, 1: 0.2, 2: 0.3, 3: 0.375})
    grown = merged({0: 1.0}, [7], np.array([1.0]))
    assert grown == {0: 0.5, 7: 0.5}


@given(
    st.dictionaries(st.integers(0, 9), st.floats(0.01, 1)),
    st.sets(st.integers(0, 9), min_size=1),
)
def test_reputations_sum_to_1_whoever_is_there(
    raw: dict[int, float], present: set[int]
) -> None:
    total = sum(raw.values())
    known = {k: value / total for k, value in raw.items()}
    client_ids = sorted(present)
    shares = shares_of(np.arange(1.0, len(client_ids) + 1))
    found = merged(known, client_ids, shares)
    assert set(found) == set(known) | present
    assert sum(found.values()) == pytest.approx(1)


def test_a_step_leaves_statistics_to_the_mean_and_keeps_dtypes() -> None:
    arrays = {
        "weight": np.ones((1, 2), dtype=np.float32),
        "running_mean": np.zeros(1, dtype=np.float32),
        "bias": np.zeros(1, dtype=np.float64),
    }
    mean = {"running_mean": np.full(1, 5.0, dtype=np.float32)}
    found = moved(arrays, np.array([0.5, -0.5, 2.0]), mean)
    assert {name: a.tolist() for name, a in found.items()} == {
        "weight": [[1.5, 0.5]],
        "running_mean": [5.0],
        "bias": [2.0],
    }
    assert [a.dtype for a in found.values()] == [a.dtype for a in arrays.values()]
    assert list(found) == list(arrays)
