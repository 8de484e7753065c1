"""Which rows become public: drawn from what clients would train on, groups never torn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import DataError
from fedsuite.data.splits import split_parts

from .raw import raw_data


def scattered_groups(num_groups=60, seed=0):
    """Groups of 1 to 4 rows, here and there in the table."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(np.arange(num_groups), rng.integers(1, 5, num_groups)))


@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=80).map(np.array),
    shares=st.tuples(st.floats(0, 0.45), st.floats(0, 0.45)),
    size=st.integers(1, 80),
    published=st.booleans(),
)
def test_public_rows_come_from_what_the_clients_would_train_on(
    labels, shares, size, published
):
    raw = raw_data(labels, (2 * len(labels) + 2) // 3 if published else None)
    before = split_parts(raw, 0.3, *shares)
    if size >= len(before.train):
        with pytest.raises(DataError, match=f"public-size = {size}: {len(before.train)} "):
            split_parts(raw, 0.3, *shares, public_size=size)
        return
    parts = split_parts(raw, 0.3, *shares, public_size=size)
    assert len(parts.public) == size
    assert sorted([*parts.train, *parts.public]) == before.train.tolist()
    assert (np.diff(parts.train) > 0).all()
    for name in ("client_test", "test", "validation"):
        assert np.array_equal(getattr(parts, name), getattr(before, name)), name
        assert not set(parts.public) & set(getattr(parts, name))


@pytest.mark.parametrize("groups", [None, scattered_groups()], ids=["rows", "groups"])
def test_fewer_public_rows_are_the_first_of_more(groups):
    num_rows = 150 if groups is None else len(groups)
    labels = np.arange(num_rows) % 3
    raw = raw_data(labels, num_rows, groups=groups)
    most = split_parts(raw, 0.3, 0.2, 0.1, 60).public
    assert len(set(most)) == 60
    assert (np.diff(most) < 0).any(), "in the order of the draw"
    for size in range(61):
        drawn = split_parts(raw, 0.3, 0.2, 0.1, size).public
        assert np.array_equal(drawn, most[:size])


def test_public_rows_are_drawn_at_random_whatever_their_labels():
    """No first or last rows; the classes in about, not exactly, their proportions."""
    labels = np.arange(1000) % 2
    public = split_parts(raw_data(labels, 1000), 0.5, public_size=300).public
    assert public.mean() == pytest.approx(500, abs=60)
    assert len(set(np.diff(np.sort(public)).tolist())) > 5
    assert labels[public].sum() == pytest.approx(150, abs=35)
    permuted = np.random.default_rng(0).permutation(labels)
    again = split_parts(raw_data(permuted, 1000), 0.5, public_size=300).public
    assert np.array_equal(again, public)
    validation = split_parts(raw_data(labels, 1000), 0.5, 0, 0.3).validation
    assert not np.array_equal(np.sort(public), validation), "another draw"


@pytest.mark.parametrize("size", range(1, 100, 7))
def test_groups_are_never_public_and_private(size):
    groups = scattered_groups()
    raw = raw_data(np.zeros(len(groups), np.int64), groups=groups)
    before = split_parts(raw, 0.2, 0.2)
    parts = split_parts(raw, 0.2, 0.2, public_size=size)
    assert len(parts.public) == size
    private = np.concatenate([parts.train, parts.client_test, parts.test])
    assert not set(groups[parts.public]) & set(groups[private])
    # All groups but the last are whole, and what is left of that one is used by nobody.
    unused = set(before.train) - set(parts.train) - set(parts.public)
    assert set(groups[list(unused)]) <= {groups[parts.public[-1]]}
    assert len(unused) < 4


def test_some_unused_rows_there_are():
    """Otherwise the test above would not see what becomes of a torn group."""
    groups = scattered_groups()
    raw = raw_data(np.zeros(len(groups), np.int64), groups=groups)
    sizes = [split_parts(raw, 0.2, public_size=size) for size in range(1, 30)]
    used = {len(parts.train) + len(parts.public) for parts in sizes}
    assert len(used) > 1


def test_all_groups_public_leaves_nothing_for_the_clients():
    raw = raw_data(np.zeros(9, np.int64), 9, groups=np.repeat([0, 1], [4, 5]))
    with pytest.raises(DataError, match="public-size = 6: 9 training rows are left"):
        split_parts(raw, 0.5, public_size=6)
