"""A site's policy as a file: defaults, comments, and what is wrong with it."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients import FedAvgClient
from fedsuite.core.errors import ConfigError
from fedsuite.data import Split
from fedsuite.deploy.relay.policy import (
    TABLES,
    Leave,
    Policy,
    allowed_hours,
    default_text,
    matches,
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


def test_the_default_file_has_the_defaults_and_a_comment_for_each_key(
    tmp_path: Path,
) -> None:
    text = default_text()
    policy = Policy.load(written(tmp_path, text))
    for name, table in TABLES.items():
        assert getattr(policy, name) == table()
    lines = text.split("\n")
    keys = [number for number, line in enumerate(lines) if " = " in line and line[0] != "#"]
    assert len(keys) == sum(len(table.KEYS) for table in TABLES.values())
    assert all(lines[number - 1].startswith("#") for number in keys)
    assert max(len(line) for line in lines if line.startswith("#")) <= 92
    assert len(policy.digest) == 64


def test_by_default_the_numbers_of_a_classifier_leave_whatever_it_says() -> None:
    """Else a site would send no scores while its model says one class of all rows."""
    rows = Split(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    client = FedAvgClient(nn.Linear(2, 2), rows, rows, validation=rows)
    sent = client.evaluation().metrics
    assert {"one-class", "validation-one-class"} <= set(sent)
    assert {name for name in sent if not matches(name, Leave().metrics)} == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[leave]\nmetric = 'a'", "leave.metric is unknown: did you mean metrics"),
        ("[leaves]\n", "leaves is unknown: did you mean leave"),
        ("leave = 3", "leave is no table"),
        ("[leave]\ndigits = 18", "digits = 18: expected a whole number >= 0 and <= 17"),
        ("[leave]\nmetrics = ['loss']", "expected a string"),
        ("[change]\nnoise-multiplier = 1.0", "set change.clip-norm above 0"),
        (
            "[change]\nnoise-multiplier = 1.0\nclip-norm = 1.0\nlargest-share = 0.5",
            "largest-share",
        ),
        ("[limits]\nhours = '9 to 5'", "expected hours as 0-24"),
        ("[limits]\nhours = '5-5'", "expected hours as 0-24"),
        ("[shelter]\nread = 'data'", "data is no absolute path"),
        ("[shelter]\nshelter = 'docker'", "one of bwrap, landlock, none"),
        ("[leave", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        Policy.load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*policy.toml"):
        Policy.load(tmp_path / "policy.toml")


def test_hours_may_go_over_midnight() -> None:
    assert allowed_hours("20-6") == frozenset({20, 21, 22, 23, 0, 1, 2, 3, 4, 5})
    assert allowed_hours("9-17") == frozenset(range(9, 17))
    assert allowed_hours("0-24") == frozenset(range(24))


@given(st.integers(0, 23), st.integers(0, 24))
def test_hours_of_a_span_are_as_many_as_it_lasts(first: int, last: int) -> None:
    if first == last:
        return
    hours = allowed_hours(f"{first}-{last}")
    assert first in hours
    assert len(hours) == ((last - first) % 24 or 24)


def test_patterns_are_those_of_a_list_with_commas() -> None:
    assert matches("train.local", "evaluate, train.*")
    assert not matches("train", "evaluate, train.*")
    assert not matches("Train", "train")
    assert not matches("", "")
