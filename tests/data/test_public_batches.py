"""T11 of FedAL: all sides come to the same public mini-batch by themselves."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.rng import numpy_stream
from fedsuite.data.public_batches import public_batch

SMALL = st.integers(0, 40)


@given(st.integers(1, 60), SMALL, st.integers(0, 2**31), SMALL, SMALL)
def test_rows_are_distinct_and_the_same_for_all(rows, size, seed, server_round, step):
    batch = public_batch(rows, size, seed, server_round, step)
    assert batch.dtype == torch.int64
    assert batch.shape == (min(size, rows) if size else rows,)
    assert len(set(batch.tolist())) == len(batch)
    assert batch.min() >= 0 and batch.max() < rows
    torch.rand(1)  # whatever else this side has drawn
    assert torch.equal(public_batch(rows, size, seed, server_round, step), batch)


@given(st.integers(0, 2**31), SMALL, SMALL, st.integers(0, 2**31), SMALL, SMALL)
def test_other_seeds_rounds_and_steps_have_other_batches(a, b, c, d, e, f):
    """Of 1,000 rows in order no two draws are alike."""
    one, other = public_batch(1000, 20, a, b, c), public_batch(1000, 20, d, e, f)
    assert torch.equal(one, other) == ((a, b, c) == (d, e, f))


def test_round_and_step_are_not_mixed_up():
    names = [(1, 2), (2, 1), (12, 0), (0, 12), (1, 12), (11, 2), (3, 0), (0, 3)]
    batches = {tuple(public_batch(1000, 10, 0, *name).tolist()) for name in names}
    assert len(batches) == len(names)


def test_it_is_the_documented_stream():
    """Also drawn there, and not what any other stream gives."""
    order = numpy_stream(7, "public-batch/3", 5).permutation(50)
    assert public_batch(50, 8, 7, 5, 3).tolist() == order[:8].tolist()
    assert public_batch(50, 0, 7, 5, 3).tolist() == order.tolist()
    assert public_batch(50, 50, 7, 5, 3).tolist() == order.tolist()
    assert public_batch(50, 99, 7, 5, 3).tolist() == order.tolist()


def test_all_rows_come_in_a_fresh_order():
    orders = {tuple(public_batch(8, 0, 0, 1, step).tolist()) for step in range(20)}
    assert len(orders) == 20


def test_all_rows_are_equally_likely():
    """Chi-square over 10 rows, 3 of them in 2,000 batches: 600 each."""
    counts = torch.zeros(10)
    for step in range(2000):
        counts[public_batch(10, 3, 0, step // 50, step % 50)] += 1
    statistic = ((counts - 600) ** 2 / (600 * 0.7)).sum() * 9 / 10
    assert statistic < 27.9, "the 0.1 % point of chi-square with 9 degrees of freedom"


def test_another_process_draws_the_same():
    program = (
        "import sys, fedsuite.data.public_batches\n"
        "assert 'torch' not in sys.modules\n"
        "print(fedsuite.data.public_batches.public_batch(200, 16, 3, 4, 5).tolist())"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(public_batch(200, 16, 3, 4, 5).tolist())


@pytest.mark.parametrize(("rows", "size"), [(0, 0), (0, 4), (-1, 4), (5, -1)])
def test_what_cannot_be_drawn(rows, size):
    with pytest.raises(ValueError, match=f"num_rows = {rows}, batch_size = {size}: exp"):
        public_batch(rows, size, 0, 1, 0)
