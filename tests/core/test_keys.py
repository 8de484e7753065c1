"""Single keys: types, bounds, choices, and what their errors say."""

import math

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Key

COUNT = Key("num-things", 3, "things", minimum=1, maximum=9)
RATE = Key("rate", 0.5, "rate", above=0.0, maximum=1.0)
FLAG = Key("flag", False, "flag")
CHOICE = Key("colour", "red", "colour", choices=("red", "blue"))
FOLDER = Key("folder", AUTO, "folder", kind=str)
SIZE = Key("size", AUTO, "size", kind=int, minimum=0)


def test_argument_is_the_name_in_snake_case():
    assert COUNT.argument == "num_things"


@pytest.mark.parametrize(
    ("key", "value"),
    [(COUNT, 1), (COUNT, 9), (RATE, 1.0), (FLAG, True), (CHOICE, "blue"), (SIZE, 0)],
)
def test_values_within_bounds_are_kept(key, value):
    assert key.parse(value) == value
    assert type(key.parse(value)) is key.type


def test_a_whole_number_serves_a_float_key():
    assert RATE.parse(1) == 1.0
    assert type(RATE.parse(1)) is float


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (COUNT, 0),
        (COUNT, 10),
        (COUNT, 3.0),
        (COUNT, True),
        (COUNT, "3"),
        (COUNT, None),
        (COUNT, AUTO),
        (RATE, 0.0),
        (RATE, 1.01),
        (RATE, True),
        (RATE, math.nan),
        (RATE, math.inf),
        (FLAG, 1),
        (FLAG, "true"),
        (CHOICE, "green"),
        (FOLDER, 3),
        (SIZE, -1),
        (SIZE, 2.0),
    ],
)
def test_other_values_are_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=rf"^key {key.name} = .*: expected "):
        key.parse(value)


def test_an_automatic_default_is_a_value_too():
    assert FOLDER.parse(AUTO) == AUTO
    assert FOLDER.parse("/runs") == "/runs"
    assert SIZE.parse(AUTO) == AUTO
    assert SIZE.type is int


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        (COUNT, "4", 4),
        (RATE, "1", 1.0),
        (RATE, "1e-3", 0.001),
        (FLAG, "true", True),
        (FLAG, "false", False),
        (CHOICE, "red", "red"),
        (FOLDER, "auto", "auto"),
        (SIZE, "auto", "auto"),
        (SIZE, "7", 7),
    ],
)
def test_text_is_read_as_the_type(key, text, value):
    assert key.parse_text(text) == value
    assert type(key.parse_text(text)) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (COUNT, "1.5"),
        (COUNT, ""),
        (COUNT, "99"),
        (RATE, "abc"),
        (RATE, "nan"),
        (FLAG, "True"),
        (FLAG, "1"),
        (CHOICE, "auto"),
    ],
)
def test_text_that_does_not_fit_is_refused_as_given(key, text):
    with pytest.raises(ConfigError) as caught:
        key.parse_text(text)
    assert str(caught.value).startswith(f"key {key.name} = ")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (COUNT, "a whole number >= 1 and <= 9"),
        (RATE, "a number > 0 and <= 1"),
        (FLAG, "true or false"),
        (CHOICE, "one of red, blue"),
        (FOLDER, 'a string, or "auto"'),
        (SIZE, 'a whole number >= 0, or "auto"'),
    ],
)
def test_allowed_in_words(key, words):
    assert key.allowed() == words
