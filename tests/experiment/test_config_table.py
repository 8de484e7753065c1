"""The generated table of keys in pyproject.toml."""

import tomllib
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.experiment.config_table import BEGIN, END, MEANING, insert, main, render
from fedsuite.experiment.key_catalog import known_keys, shared_groups, table_default

ROOT = Path(__file__).parents[2]


def test_pyproject_is_up_to_date():
    assert main(["--check", str(ROOT / "pyproject.toml")]) == 0


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


PROJECT = f'[project]\nname = "x"\n\n{BEGIN}\nold = 1\n{END}\n\n[tool.x]\ny = 1\n'


def test_insert_replaces_what_is_between_the_markers():
    new = insert(PROJECT)
    assert new.startswith(f'[project]\nname = "x"\n\n{BEGIN}\n{MEANING}\n')
    assert new.endswith(f"\n{END}\n\n[tool.x]\ny = 1\n")
    assert "old = 1" not in new
    assert insert(new) == new


@pytest.mark.parametrize(
    "text",
    ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{PROJECT}", f"{PROJECT}{END}\n"],
    ids=len,
)
def test_missing_or_repeated_markers_are_refused(text):
    with pytest.raises(ConfigError):
        insert(text)


def test_write_and_check(tmp_path, capsys):
    path = tmp_path / "pyproject.toml"
    path.write_text(PROJECT)
    assert main(["--check", str(path)]) == 1
    assert "is stale: run `make config`" in capsys.readouterr().err
    assert path.read_text() == PROJECT
    assert main(["--write", str(path)]) == 0
    assert path.read_text() == insert(PROJECT)
    assert main(["--check", str(path)]) == 0


def test_a_file_that_cannot_be_read_is_one_line(tmp_path, capsys):
    assert main(["--check", str(tmp_path / "none.toml")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedsuite: error: ")
    assert error.count("\n") == 1
