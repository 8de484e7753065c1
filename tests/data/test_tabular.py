"""Standardising by the training part, and codes as columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.data import RawData
from fedsuite.data.tabular import one_hot, standardised

NAN = float("nan")


def raw(rows: list[list[float]]) -> RawData:
    return RawData(np.array(rows, np.float32), np.zeros(len(rows), np.int64))


def test_one_hot_by_hand() -> None:
    assert one_hot(np.array([2, -1, 0]), 3).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_standardised_by_hand() -> None:
    """Training rows 0 to 2: column 0 has 1 and 3, mean 2, deviation 1."""
    before = raw([[1, 5, 7], [NAN, 5, 8], [3, 5, 9], [6, 7, 1]])
    after = standardised(before, np.array([0, 1, 2]), 2)
    assert after.features.tolist() == [[-1, 0, 7], [0, 0, 8], [1, 0, 9], [4, 2, 1]]
    assert after.features.dtype == np.float32
    assert np.isnan(before.features[1, 0])  # what comes in stays as it is


def test_column_that_nobody_measured() -> None:
    after = standardised(raw([[NAN], [NAN], [4]]), np.array([0, 1]), 1)
    assert after.features[:2].tolist() == [[0], [0]]
    assert np.isfinite(after.features).all()


@given(st.integers(0, 99))
def test_test_rows_have_no_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(3, 2, (20, 3)).astype(np.float32)
    rows[rng.random(rows.shape) < 0.2] = NAN
    train = np.sort(rng.choice(20, 12, replace=False))
    held_out = np.setdiff1d(np.arange(20), train)
    other = rows.copy()
    other[held_out] = 1e6
    first, second = (standardised(raw(r), train, 3).features for r in (rows, other))
    assert np.array_equal(first[train], second[train])
    present = ~np.isnan(rows[train])
    for column in range(3):
        known = first[train][present[:, column], column]
        if len(known) > 1:
            assert known.mean() == pytest.approx(0, abs=1e-5)
            assert known.std() == pytest.approx(1, abs=1e-4)
