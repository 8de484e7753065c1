"""What a results page says of methods that are not their papers'."""

from importlib import import_module

import pytest

from fedsuite.core.registry import METHODS
from fedsuite.strategies import load_strategy


@pytest.mark.parametrize("name", METHODS)
def test_a_board_can_say_which_methods_are_our_reading(name: str) -> None:
    strategy = load_strategy(METHODS[name])
    words = " ".join((import_module(strategy.__module__).__doc__ or "").split()).lower()
    unread = "abstract" in words or "could not be read" in words
    assert ("our reading" in strategy.READING) == unread
    assert len(strategy.READING) <= 60
    assert not strategy.READING.endswith(".")
