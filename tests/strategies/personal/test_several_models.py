"""Further models differ from the first one in what is trained, and in nothing else."""

import numpy as np
import pytest

from fedsuite.messages.statistics import buffers_declared
from fedsuite.strategies.personal.several_models import shuffled


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


DRAWN = read_only(np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32))
CONSTANT = {
    "mask": np.triu(np.full((4, 4), -1e9, np.float32), 1),
    "least": np.triu(np.full((4, 4), np.finfo(np.float32).min), 1),
    "causal": np.triu(np.full((4, 4), -np.inf, np.float32), 1),
    "allowed": np.tril(np.ones((4, 4), np.float32)),
    "halves": np.array([0.5, -0.5, 0.5, 0.5], np.float32),
    "numbers": np.arange(16),
    "flags": np.array([True, False, True]),
    "none": np.zeros(0, np.float32),
    "nothing": np.zeros((0, 3), np.float32),
    "one": np.array(0.25, np.float32),
    "running_var": np.linspace(0.1, 0.9, 9, dtype=np.float32),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_constants_stay(name: str) -> None:
    array = read_only(CONSTANT[name])
    made = shuffled({"w": DRAWN, name: array}, 0, 1)
    assert np.array_equal(made[name], array)
    assert made[name].shape == array.shape
    assert not np.array_equal(made["w"], DRAWN)
    assert sorted(made["w"].reshape(-1)) == sorted(DRAWN.reshape(-1))


def test_codes_stay_where_the_network_says_that_they_are_buffers() -> None:
    codes = read_only(np.sin(np.arange(16.0)).reshape(4, 4))
    with buffers_declared(["codes"]):
        made = shuffled({"w": DRAWN, "codes": codes}, 0, 1)
    assert np.array_equal(made["codes"], codes)
    assert not np.array_equal(made["w"], DRAWN)


def test_a_constant_more_moves_no_other_draw() -> None:
    """Zeros, as biases begin, take their turn of the stream, as ever."""
    zeros = read_only(np.zeros(5, np.float32))
    usual = shuffled({"bias": zeros, "w": DRAWN}, 0, 1)["w"]
    stream_of_old = shuffled({"bias": read_only(zeros + 0.5), "w": DRAWN}, 0, 1)["w"]
    assert np.array_equal(usual, stream_of_old)
