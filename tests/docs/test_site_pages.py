"""Pages that the site makes: equations, keys, the heat map, pictures of partitions."""

import re
import tomllib

import pytest
from docutils.utils.math.latex2mathml import tex2mathml

from fedsuite.core.registry import METHODS
from fedsuite.experiment.key_catalog import our_keys
from tests.docs.pages import ROOT  # puts docs/ on the path
from tests.results_pages.recomputed import SIMULATIONS


@pytest.mark.parametrize("name", [*METHODS.ours, "filter-decomposition"])
def test_every_method_has_equations_whose_signs_are_named(name):
    from method_pages import EQUATIONS, typeset

    entries = tomllib.loads(EQUATIONS.read_text())
    assert name in entries, f"docs/equations.toml has no [{name}]"
    entry, common = entries[name], entries["common"]
    formulas = "".join(entry["equations"]).replace(" ", "")
    for formula in entry["equations"]:
        tex2mathml(formula, as_block=True)
    for line in entry["where"]:
        sign, _, meaning = line.partition(": ")
        tex2mathml(sign)
        assert meaning or sign in common, f"{sign} is not named"
        used = sign.partition("(")[0].replace(" ", "")
        assert used in formulas, f"{sign} is in no equation"
    assert typeset(name).count("$$") == 2 * len(entry["equations"])


def test_equations_are_of_methods():
    from method_pages import EQUATIONS

    entries = tomllib.loads(EQUATIONS.read_text())
    assert set(entries) <= {*METHODS.ours, "filter-decomposition", "common"}


def test_the_page_of_keys_has_every_key_once_or_by_owner():
    from key_page import rendered

    page = rendered()
    shown = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    assert shown == set(our_keys())
    assert f"The page has {len(shown)} keys" in page


def test_the_heat_map_has_the_numbers_of_the_tables():
    from board_page import heat_map, means_of

    folder = SIMULATIONS / "leaderboard" / "first"
    lines = (folder / "finals.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    rows = [float(c[3]) for c in cells if c[:2] == ["hospitals", "fedavg"]]
    means = means_of(folder)
    assert abs(means["hospitals"]["fedavg"] - sum(rows) / len(rows)) < 1e-9
    html = heat_map({"p": {"fedavg": 50.0, "fedeba": 55.0, "x<y": 40.0}})
    assert ">50.0</td>" in html and "class='reference'" in html
    assert "class='above' style='--share: 0.50' title='+5.0 from fedavg'>55.0" in html
    assert "class='below' style='--share: 1.00'" in html and "x&lt;y" in html


def test_long_tables_are_folded_and_nothing_is_lost():
    from repository_pages import folded

    short, table = ["| a | b |", "| --- | --- |", "| 1 | 2 |"], ["| a |", "| --- |"]
    table += [f"| {n} |" for n in range(20)]
    text = "\n".join(["# t", "", *short, "", *table, "", "end"])
    page = folded(text)
    assert page.count("<details>") == page.count("</details>") == 1
    kept = [line for line in page.splitlines() if line and "details>" not in line]
    assert kept == [line for line in text.splitlines() if line]


def test_pictures_show_what_their_keys_say():
    from partition_pictures import PICTURES, counts_of

    held = {name: (counts_of(keys) > 0).sum(axis=1) for name, keys in PICTURES.items()}
    assert held["dirichlet_100"].min() == 10
    assert held["dirichlet_0.1"].mean() < held["dirichlet_1"].mean()
    page = (ROOT / "docs" / "concepts" / "partitions.md").read_text()
    assert set(re.findall(r"generated/partitions/([\w.]+)\.svg", page)) == set(PICTURES)


def test_the_first_page_has_the_numbers_of_the_results_pages():
    text = (ROOT / "docs" / "index.md").read_text()
    claims = re.findall(
        r"^- \*\*\[[^]]+\]\(generated/results/(\w+)\.md\)(.*?)\n(?=[-\n])",
        text,
        re.M | re.S,
    )
    assert len(claims) == 4
    for name, words in claims:
        page = (SIMULATIONS / name / "README.md").read_text()
        for number in re.findall(r"\d+\.\d+", words):
            assert number in page, f"{name}: {number}"
