"""What a policy does to arrays: hand-checked numbers, identities, properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsuite.core.vectors import norm
from fedsuite.deploy.relay.outgoing import bounded, clip, keep_largest
from fedsuite.deploy.relay.policy import Change

PLACE = ("arrays", "weight")
CHANGES = st.lists(
    arrays(np.float64, st.integers(1, 5), elements=st.floats(-1e3, 1e3)),
    min_size=1,
    max_size=3,
)


def test_a_change_of_length_five_is_scaled_to_the_bound() -> None:
    clipped = clip([np.array([3.0]), np.array([4.0])], 2.5)
    assert [part.tolist() for part in clipped] == [[1.5], [2.0]]


@pytest.mark.parametrize(
    ("bound", "length"), [(4.95, 4.95), (5.0, 5.0), (5.05, 5.0), (0, 5.0)]
)
def test_a_bound_binds_above_it_alone(bound: float, length: float) -> None:
    assert norm(*clip([np.array([3.0, 4.0])], bound)) == pytest.approx(length)


def test_the_largest_third_of_six_is_two_of_them() -> None:
    kept = keep_largest([np.array([1.0, -5.0, 2.0]), np.array([[3.0, 0.5, -2.0]])], 1 / 3)
    assert [part.tolist() for part in kept] == [[0.0, -5.0, 0.0], [[3.0, 0.0, 0.0]]]


@given(CHANGES, st.floats(0.01, 1.0))
def test_a_share_keeps_as_many_and_none_smaller_than_one_left_out(
    change: list[np.ndarray], share: float
) -> None:
    kept = np.concatenate([part.ravel() for part in keep_largest(change, share)])
    before = np.concatenate([part.ravel() for part in change])
    count = max(round(share * before.size), 1)
    assert np.count_nonzero(kept) <= count
    left_out = np.abs(before[kept != before])
    assert not left_out.size or left_out.max() <= np.sort(np.abs(before))[-count]


@given(CHANGES, st.floats(0.01, 1e4))
def test_no_change_is_longer_than_its_bound(change: list[np.ndarray], bound: float) -> None:
    clipped = clip(change, bound)
    assert norm(*clipped) <= bound * (1 + 1e-9)
    if norm(*change) <= bound:
        assert all((a == b).all() for a, b in zip(clipped, change, strict=True))


def test_a_rule_that_does_nothing_gives_the_same_bits() -> None:
    values = {PLACE: np.array([0.1, 0.2], np.float32)}
    asked = {PLACE: np.array([0.3, 0.7], np.float32)}
    left = bounded(values, asked, Change(), np.random.default_rng(0))
    assert left.arrays[PLACE].tobytes() == values[PLACE].tobytes()
    assert left.norm == left.norm_left == pytest.approx(np.hypot(0.2, 0.5))


def test_noise_has_the_deviation_that_the_rule_says() -> None:
    asked = {PLACE: np.zeros(100_000)}
    rule = Change(clip_norm=2.0, noise_multiplier=1.5)
    left = bounded({PLACE: np.zeros(100_000)}, asked, rule, np.random.default_rng(1))
    assert left.arrays[PLACE].std() == pytest.approx(3.0, rel=0.02)
