"""Memory that two processes share: what is put in is what the other side sees."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from fedsuite.engines.pool.arena import Arena, Arenas, new_descriptor

DTYPES = st.sampled_from(["<f4", "<f8", "<i8", "|u1", "|b1", "<f2"])
SHAPES = hypothesis_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20)
ARRAYS = hypothesis_numpy.arrays(DTYPES, SHAPES)


@pytest.fixture
def descriptor():
    number = new_descriptor()
    yield number
    os.close(number)


@given(arrays=st.lists(ARRAYS, max_size=8))
def test_the_other_side_sees_what_was_put_in(arrays):
    number = new_descriptor()
    writer, reader = Arena(3, number), Arena(3, number)
    places = [writer.put(array) for array in arrays]
    found = [reader.get(place) for place in places]
    for array, seen in zip(arrays, found, strict=True):
        assert seen.dtype == array.dtype and seen.shape == array.shape
        assert seen.tobytes() == array.tobytes()
        assert not seen.flags.writeable
    assert all(place[0] == 3 and place[1] % 64 == 0 for place in places)
    os.close(number)


def test_it_grows_and_keeps_what_is_there(descriptor):
    writer, reader = Arena(0, descriptor), Arena(0, descriptor)
    first = writer.put(np.arange(3.0))
    early = reader.get(first)
    large = np.arange(100_000.0)
    place = writer.put(large)
    assert reader.get(place).tobytes() == large.tobytes()
    assert early.tolist() == reader.get(first).tolist() == [0.0, 1.0, 2.0]


def test_cleared_memory_is_used_again(descriptor):
    arena = Arena(0, descriptor)
    assert arena.put(np.ones(3))[1] == 0
    assert arena.put(np.ones(9))[1] == 64
    assert arena.put(np.ones(1))[1] == 192
    arena.clear()
    assert arena.put(np.zeros(1))[1] == 0


def test_a_transposed_array_arrives_as_it_reads(descriptor):
    arena = Arena(0, descriptor)
    array = np.arange(6.0).reshape(2, 3).T
    assert arena.get(arena.put(array)).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_a_place_names_its_arena():
    numbers = [new_descriptor(), new_descriptor()]
    arenas = Arenas(numbers)
    place = arenas.all[1].put(np.array([7.0]))
    arenas.all[0].put(np.array([5.0]))
    assert Arenas(numbers).get(place).tolist() == [7.0]
    for number in numbers:
        os.close(number)


@given(arrays=st.lists(ARRAYS, min_size=1, max_size=8))
def test_lent_arrays_are_those_that_were_put_in(arrays):
    number = new_descriptor()
    writer, reader = Arena(3, number), Arena(3, number)
    places = [writer.put(array) for array in arrays]
    lent = reader.lend(lambda: None)
    for array, place in zip(arrays, places, strict=True):
        seen = lent(place)
        assert seen.dtype == array.dtype and seen.shape == array.shape
        assert seen.tobytes() == array.tobytes()
        assert not seen.flags.writeable
    os.close(number)


def test_memory_is_given_back_with_the_last_view(descriptor):
    writer, reader, given_back = Arena(0, descriptor), Arena(0, descriptor), []
    places = [writer.put(np.arange(6.0)), writer.put(np.arange(3.0))]
    get = reader.lend(lambda: given_back.append(1))
    first, second = map(get, places)
    part = first.reshape(2, 3)[1:]
    del get, first, second
    assert given_back == [] and part.tolist() == [[3.0, 4.0, 5.0]]
    del part
    assert given_back == [1]


def test_a_copy_is_not_written_over(descriptor):
    arena = Arena(0, descriptor)
    place = arena.put(np.arange(3.0))
    copy, view = arena.copy(place), arena.get(place)
    arena.clear()
    arena.put(np.zeros(3))
    assert copy.tolist() == [0.0, 1.0, 2.0] and not copy.flags.writeable
    assert view.tolist() == [0.0, 0.0, 0.0]
