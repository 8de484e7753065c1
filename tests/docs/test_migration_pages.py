"""Pages for who comes from PFLlib or FL-bench: what their tables name is there."""

import re
import tomllib
from collections.abc import Iterator

import pytest

from fedsuite.core.registry import METHODS, OPTIONS
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import known_keys
from fedsuite.models import MODELS
from fedsuite.strategies import load_strategy
from tests.docs.pages import DOCS

PAGES = {
    name: (DOCS / "how-to" / f"{name}.md").read_text()
    for name in ("from_pfllib", "from_fl_bench")
}
OTHER_WORDS = re.compile(r"fedsuite |--|[A-Z]|.*\.(jsonl|safetensors)$")
"""What stands among keys and is none: commands, variables, files."""


def rows(page: str, title: str) -> list[list[str]]:
    """The cells of the table below a title."""
    text = PAGES[page].partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def ticked(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def assignments(cell: str, own: set[str]) -> Iterator[tuple[str, object]]:
    """Our keys in a cell, each with its value, None where the cell has none.

    Their names begin with a dash or hold none; ``own`` are our keys that hold none either.
    """
    for token in ticked(cell):
        key, sign, value = (part.strip() for part in token.partition("="))
        is_ours = key in own or ("-" in key and not key.startswith("-"))
        if is_ours and not OTHER_WORDS.match(token):
            yield key, _value(value) if sign else None


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


METHOD_ROWS = [
    pytest.param(page, *row, id=f"{page}-{row[0]}")
    for page in PAGES
    for row in rows(page, "Methods and their keys")
]


def plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


@pytest.mark.parametrize(("page", "theirs", "ours", "keys", "differs"), METHOD_ROWS)
def test_a_row_names_a_method_and_keys_that_it_has(
    page: str, theirs: str, ours: str, keys: str, differs: str
) -> None:
    [name], [method] = ticked(theirs), ticked(ours)
    strategy = load_strategy(METHODS[method])
    named = dict(assignments(keys, {key.name for key in strategy.method_keys()}))
    for key in named:
        owners = known_keys()[key].owners
        assert not owners or f"method {method}" in owners, f"{key} is none of {method}"
        assert key not in strategy.UNUSED and key not in strategy.WITHOUT_EFFECT
    given = {key: value for key, value in named.items() if value is not None}
    experiment = Experiment.from_values(
        {"method": method, **OPTIONS.get(plain(name), {}), **given}
    )
    assert given.items() <= experiment.values.items()
    if plain(name) in OPTIONS:
        assert method == "fedavg"
        assert set(OPTIONS[plain(name)]) <= set(named), f"{theirs}: name its keys"
    else:
        others = {"local": "standalone", "peravg": "per-fedavg"}
        assert plain(others.get(plain(name), name)) == plain(method)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_denies_what_exists(page: str) -> None:
    methods = PAGES[page].partition("## Methods and their keys")[2].partition("\n## ")[0]
    denied = {
        plain(n) for n in ticked(methods.partition("no equivalent:")[2].partition(". ")[0])
    }
    assert len(denied) > 10
    there = {plain(name) for name in (*METHODS, *OPTIONS)}
    listed = {plain(row[0].strip("`")) for row in rows(page, "Methods and their keys")}
    assert not denied & (there | listed)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("title", ["Keys of every run", "Data"])
def test_other_tables_name_keys_and_values_that_there_are(page: str, title: str) -> None:
    for row in rows(page, title):
        for token in ticked(row[1]):
            key, sign, value = (part.strip() for part in token.partition("="))
            if OTHER_WORDS.match(token):
                continue
            assert key in known_keys(), f"{row[0]}: {token}"
            if sign:
                known_keys()[key].declarations[0].parse(_value(value))


@pytest.mark.parametrize("page", PAGES)
def test_networks_are_there(page: str) -> None:
    for row in rows(page, "Networks"):
        named = [token for token in ticked(row[1]) if "=" not in token]
        assert all(n in MODELS or n in known_keys() or '"' in n for n in named), row


def test_the_rates_of_pfedme_are_not_swapped() -> None:
    """PFLlib's -lrp 0.1 and -lr 0.005 with lambda 15: w_k steps by 0.075, never by 1.5."""
    for page, inner, outer in (
        ("from_pfllib", "-lrp", "-lr"),
        ("from_fl_bench", "pers_lr", "optimizer.lr"),
    ):
        [row] = [r for r in rows(page, "Methods and their keys") if r[1] == "`pfedme`"]
        assert f"`{inner}` is `learning-rate`" in row[2]
        assert f"`{outer}` is `pfedme-learning-rate`" in row[2]
    Experiment.from_values({"method": "pfedme", "learning-rate": 0.1})
    strategy = load_strategy(METHODS["pfedme"])
    assert strategy(pfedme_learning_rate=0.005)
    with pytest.raises(ValueError, match="lambda"):
        strategy(pfedme_learning_rate=0.1)
