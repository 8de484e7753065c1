"""Names of versions: what they say, and which of two is older."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.messages.versions import exchange_of, is_older, is_version, version_name

PARTS = st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 999), st.integers(1, 99))
"""Attempt, round and exchange."""


def named(parts: tuple[int, int, int]) -> str:
    attempt, server_round, exchange = parts
    return version_name(server_round, exchange, attempt)


def test_only_attempts_add_to_the_name() -> None:
    assert version_name(5, 1) == "5.1"
    assert version_name(5, 1, 7) == "5.1-7"
    assert exchange_of("5.1-7") == exchange_of("5.1") == "5.1"
    assert exchange_of("") == ""


@given(PARTS, PARTS)
def test_an_earlier_attempt_is_older_whatever_its_round(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    assert is_version(named(first))
    assert is_older(named(first), named(second)) == (first < second)


@pytest.mark.parametrize("name", ["", "1", "1.1-", "1.1-a", "1.1-1-1", "1.1-" + "1" * 16])
def test_what_is_no_version_is_older_than_none(name: str) -> None:
    assert not is_version(name)
    assert not is_older(name, "9.9-9") and not is_older("0.1", name)
