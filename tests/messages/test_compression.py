"""Coded changes of a model: what comes back, what is lost, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.messages.array_records import RecordError, num_bytes
from fedsuite.messages.compression import (
    BUCKET,
    UP,
    Codec,
    changed,
    coded_names,
    from_bfloat16,
    moved,
    not_across,
    packed,
    to_bfloat16,
    unpacked,
)

SHAPES = {"b.weight": (12, 7), "a.weight": (30, 30), "a.bias": (3,), "none": (0, 2)}
SIZE = 12 * 7 + 900 + 3
KINDS = ("top-k", "random-k", "qsgd", "signs", "low-rank", "float16", "bfloat16")
BYTES = {
    "top-k": 99 * 8,
    "random-k": 99 * 4,
    "qsgd": SIZE // 2 + 1 + 4 * 2,
    "signs": -(-SIZE // 8) + 4 * 4,
    "low-rank": 4 * (2 * (12 + 7) + 2 * (30 + 30) + 3),
    "float16": 2 * SIZE,
    "bfloat16": 2 * SIZE,
}


def codec(kind, *, share=0.1, bits=4, rank=2, seed=0):
    return Codec(kind, share, bits, rank, seed, UP)


def change(seed=0, scale=1.0):
    stream = np.random.default_rng(seed)
    return {
        name: (scale * stream.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def there_and_back(one, arrays, server_round=1, client_id=2):
    coded = one.encode(arrays, server_round, client_id)
    backwards = dict(reversed(SHAPES.items()))
    return coded, one.decode(coded, backwards, server_round, client_id)


def flat(arrays):
    return np.concatenate([arrays[name].reshape(-1) for name in sorted(SHAPES)])


@pytest.mark.parametrize("kind", KINDS)
def test_what_travels_is_small_and_comes_back_in_shape(kind):
    coded, back = there_and_back(codec(kind), change())
    assert num_bytes(coded) == BYTES[kind]
    assert {name: array.shape for name, array in back.items()} == SHAPES
    assert all(array.dtype == np.float32 for array in back.values())
    lost = np.linalg.norm(flat(change()) - flat(back)) / np.linalg.norm(flat(change()))
    assert lost < {"random-k": 4.0, "float16": 1e-3, "bfloat16": 4e-3}.get(kind, 0.95)


def test_the_largest_entries_come_as_they_are():
    _, back = there_and_back(codec("top-k"), change())
    kept, all_entries = flat(back), flat(change())
    assert np.array_equal(kept[kept != 0], all_entries[kept != 0])
    assert np.abs(all_entries[kept == 0]).max() <= np.abs(kept[kept != 0]).min()


def test_a_matrix_of_low_rank_comes_back_whole():
    left, right = np.random.default_rng(0).standard_normal((2, 30, 2))
    arrays = {**change(), "a.weight": (left @ right.T).astype(np.float32)}
    _, back = there_and_back(codec("low-rank"), arrays)
    np.testing.assert_allclose(back["a.weight"], arrays["a.weight"], atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("random-k", {}), ("qsgd", {"bits": 2}), ("qsgd", {"bits": 8})],
)
def test_unbiased_ones_are_right_in_the_mean(kind, options):
    one, arrays, draws = codec(kind, **options), change(), 400
    errors = np.array(
        [flat(there_and_back(one, arrays, d)[1]) - flat(arrays) for d in range(draws)],
        dtype=np.float64,
    )
    # The mean of independent errors without bias is so much shorter, squared.
    ratio = np.square(errors.mean(axis=0)).sum() * draws / np.square(errors).sum(1).mean()
    assert 0.8 < ratio < 1.25


def test_draws_are_of_round_and_client():
    one = codec("random-k")
    values = [
        one.encode(change(), *at)["values"] for at in ((1, 2), (1, 2), (2, 2), (1, 3))
    ]
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    assert not np.array_equal(values[0], values[3])


@pytest.mark.parametrize("kind", ["top-k", "signs", "low-rank"])
def test_what_is_fed_back_gets_across_in_the_end(kind):
    one, target, lost, total = codec(kind), change(), {}, None
    for server_round in range(1, 41):
        step = {name: array + lost.get(name, 0) for name, array in target.items()}
        _, back = there_and_back(one, step, server_round)
        lost = not_across(step, back)
        total = back if total is None else {n: total[n] + back[n] for n in back}
    mean = flat(total) / 40
    error = np.linalg.norm(mean - flat(target)) / np.linalg.norm(flat(target))
    once = np.linalg.norm(flat(there_and_back(one, target)[1]) - flat(target))
    assert error < 0.35 < once / np.linalg.norm(flat(target))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
@settings(max_examples=60, deadline=None)
def test_bfloat16_is_the_nearest_of_its_grid(numbers):
    values = np.array(numbers, np.float32)
    values = values[np.abs(values) < 3e38]
    back = from_bfloat16(to_bfloat16(values))
    assert np.array_equal(from_bfloat16(to_bfloat16(back)), back)
    assert np.all(np.abs(back - values) <= np.abs(values) * 2.0**-8 + 1e-40)


def test_of_two_as_near_the_even_bfloat16_is_taken():
    """As in torch; always the larger one would add up."""
    halves = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8], np.float32)
    assert from_bfloat16(to_bfloat16(halves)).tolist() == [1.0, 1 + 2.0**-6, -1.0]


def test_only_ones_that_lose_something_are_on():
    assert not codec("none").is_on
    assert not codec("top-k", share=1.0).is_on and codec("signs", share=1.0).is_on
    assert not codec("qsgd", bits=32).is_on and codec("qsgd", bits=16).is_on


HOSTILE = {
    "top-k": {
        "rising": lambda c: {**c, "places": c["places"][::-1].copy()},
        "below 987": lambda c: {**c, "places": c["places"] + np.uint32(900)},
        "NaN": lambda c: {**c, "values": c["values"] * np.float32("nan")},
        "shape": lambda c: {name: array[:-1] for name, array in c.items()},
        "int64": lambda c: {**c, "places": c["places"].astype(np.int64)},
        "expected places": lambda c: {"values": c["values"]},
    },
    "qsgd": {
        "at least 0": lambda c: {**c, "scales": -c["scales"]},
        "NaN": lambda c: {**c, "scales": c["scales"] * np.float32("inf")},
        "up to 14": lambda c: {**c, "levels": np.full_like(c["levels"], 255)},
    },
    "signs": {"at least 0": lambda c: {**c, "scales": -c["scales"]}},
    "low-rank": {
        "shape": lambda c: {**c, "left/a.weight": c["left/a.weight"].T.copy()},
        "expected": lambda c: {**c, "left/x": c["left/a.weight"]},
    },
    "float16": {"NaN": lambda c: {"values": np.full_like(c["values"], np.inf)}},
}


@pytest.mark.parametrize(
    ("kind", "words"), [(kind, words) for kind, lies in HOSTILE.items() for words in lies]
)
def test_what_no_client_can_have_coded_is_refused(kind, words):
    coded = codec(kind).encode(change(), 1, 2)
    with pytest.raises(RecordError, match=words) as caught:
        codec(kind).decode(HOSTILE[kind][words](coded), SHAPES, 1, 2)
    assert "\n" not in str(caught.value)


def test_records_hold_what_is_coded_and_the_rest():
    arrays = {"w": np.ones(3, np.float64), "n": np.zeros((), np.int64)}
    arrays |= {"running_mean": np.zeros(2, np.float32)}
    assert coded_names(arrays, arrays) == ["w"] and not coded_names(arrays, ())
    old = {"w": np.zeros(3, np.float64)}
    step = changed(arrays, old, ["w"], {"w": np.ones(3, np.float32)})
    assert step["w"].dtype == np.float32 and step["w"].tolist() == [2.0] * 3
    new = moved({**old, "n": arrays["n"]}, step)
    assert new["w"].dtype == np.float64 and new["n"] is arrays["n"]
    assert unpacked(packed(step, arrays)) == (step, arrays)
    with pytest.raises(RecordError, match="expected a coded change"):
        unpacked(arrays)
    assert BUCKET == 512
