"""When devices are there: spans by hand, and what holds of every kind."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.devices.availability import (
    DAY,
    HOUR,
    Always,
    Availability,
    Daily,
    Markov,
    Table,
)


def night(chance: float = 1.0, seed: int = 0) -> Daily:
    return Daily(22 * HOUR, 8 * HOUR, chance, seed, 0)


def test_a_night_by_hand() -> None:
    """At midnight of day 0 the night that began at 22 o'clock goes on until 6."""
    assert night().span(0.0) == (-2 * HOUR, 6 * HOUR)
    assert night().span(6 * HOUR) == (22 * HOUR, 30 * HOUR)
    assert night().span(DAY) == (22 * HOUR, 30 * HOUR)


def test_a_share_of_the_nights() -> None:
    nights = night(0.25)
    second, begun = 0.0, []
    while len(begun) < 200:
        span = nights.span(second)
        assert span is not None
        begun.append(round(span[0] / DAY))
        second = span[1]
    assert 0.2 < 200 / (begun[-1] - begun[0]) < 0.3


def test_a_chain_is_there_for_its_share_of_time() -> None:
    chain = Markov(100.0, 300.0, 0, 1)
    second, there = 0.0, 0.0
    while second < 1e6:
        span = chain.span(second)
        assert span is not None
        there += span[1] - max(span[0], 0.0)
        second = span[1]
    assert there / second == pytest.approx(0.25, abs=0.02)


def test_a_chain_is_the_same_whoever_asks_first() -> None:
    asked = [Markov(100.0, 50.0, 3, 7) for _ in range(2)]
    asked[1].span(1e5)
    assert asked[0].span(40.0) == asked[1].span(40.0)
    assert asked[0].span(9999.0) == asked[1].span(9999.0)


def test_a_table_by_hand() -> None:
    table = Table([(50.0, 60.0), (0.0, 10.0), (10.0, 20.0)])
    assert table.span(-5.0) == table.span(0.0) == table.span(19.9) == (0.0, 20.0)
    assert table.span(20.0) == (50.0, 60.0)
    assert table.span(60.0) is None


KINDS = st.one_of(
    st.just(Always()),
    st.builds(night, st.sampled_from([0.1, 0.5, 1.0]), st.integers(0, 9)),
    st.builds(
        Markov, st.floats(50, 1e4), st.floats(50, 1e4), st.integers(0, 9), st.just(0)
    ),
    st.builds(
        lambda starts: Table([(s, s + 7.0) for s in starts]), st.lists(st.floats(0, 1e4))
    ),
)


@settings(max_examples=50)
@given(KINDS, st.floats(0, 1e5))
def test_a_span_holds_the_second_or_comes_next(kind: Availability, second: float) -> None:
    span = kind.span(second)
    if span is None:
        return
    begins, ends = span
    assert begins < ends and second < ends
    inside = max(begins, second)
    assert kind.span(inside) == span
    assert math.isinf(ends) or kind.span(ends) != span
