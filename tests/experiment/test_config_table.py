"""The generated table of keys in pyproject.toml."""

import tomllib

import pytest

from fedsuite.experiment.key_catalog import known_keys, shared_groups, table_default
from tests.experiment.config_table import (
    BEGIN,
    END,
    MEANING,
    PROJECT,
    render,
    with_table,
)


def test_pyproject_is_up_to_date():
    text = PROJECT.read_text()
    assert with_table(text) == text, "run `make config`"


def test_table_has_every_key_once_in_declared_order_by_section():
    table = tomllib.loads(render())["tool"]["flwr"]["app"]["config"]
    assert table == {name: table_default(name) for name in known_keys()}
    names = list(table)
    # Run, data with partitioners, model, training, methods.
    order = [
        "method",
        "num-rounds",
        "dataset",
        "partitioner",
        "shards-per-client",
        "model",
        "hidden-width",
        "local-epochs",
        "learning-rate",
        "proximal-mu",
    ]
    assert sorted(order, key=names.index) == order


def test_a_key_takes_one_line():
    """So that a new method changes no line of another one."""
    lines = render().splitlines()
    sections = len({*shared_groups(), "methods"})
    assert sum(" = " in line for line in lines) == len(known_keys())
    assert sum(line.startswith("# ") for line in lines) == 1 + sections


def test_a_new_table_replaces_what_is_between_the_markers():
    new = with_table(f"[project]\n\n{BEGIN}old = 1\n{END}\n[tool.x]\n")
    assert new.startswith(f"[project]\n\n{BEGIN}{MEANING}\n")
    assert new.endswith(f"\n{END}\n[tool.x]\n")
    assert "old = 1" not in new
    assert with_table(new) == new


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}"], ids=len)
def test_missing_markers_are_refused(text):
    with pytest.raises(ValueError, match="expected one line"):
        with_table(text)
