"""Pages of the methods: docstrings as Markdown, ideas, and measured costs."""

import os
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsuite.core.registry import METHODS
from tests.docs.pages import DOCS, written_pages  # puts docs/ on the path


def test_equations_stay_text() -> None:
    from restructured import markdown

    text = (
        "A mean of ``w_k``, :mod:`fedsuite.a`:\n\n    x_{t+1} = x_t * 2\n\nx_t |a| <b>\n- c"
    )
    assert markdown(text).split("\n\n") == [
        "A mean of `w_k`, `fedsuite.a`:",
        "```text\nx_{t+1} = x_t * 2\n```",
        "x\\_t \\|a\\| \\<b\\>\n\\- c",
    ]
    assert markdown("- a_1\n  + b\n- c") == "- a\\_1\n  \\+ b\n- c"


def test_ideas_are_of_methods() -> None:
    from method_pages import IDEAS

    ideas = tomllib.loads(IDEAS.read_text())
    assert set(ideas) <= {*METHODS, "filter-decomposition"}


@pytest.mark.parametrize("name", [*METHODS.ours, "filter-decomposition"])
def test_every_method_has_an_idea_of_three_sentences(name: str) -> None:
    from method_pages import IDEAS

    ideas = tomllib.loads(IDEAS.read_text())
    assert name in ideas, f"docs/ideas.toml has no {name}"
    assert ideas[name].count(". ") == 2


def test_costs_are_measured() -> None:
    """The model has 64 x 200 + 200 + 200 x 200 + 200 + 200 x 10 + 10 parameters."""
    from method_costs import measured

    average = measured({"method": "fedavg"})
    assert list(average.down) == ["train", "evaluate"]
    parameters = 4 * (64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10)
    sent = average.up["train"].arrays["arrays"]
    assert parameters < sent < 1.01 * parameters
    assert average.server == 0
    ditto = measured({"method": "ditto"})
    assert ditto.training == 2 * average.training
    alone = measured({"method": "standalone"})
    assert alone.training == average.training
    assert sum(alone.up["train"].arrays.values()) == 0


HEADINGS = [
    "## Results",
    "## Equations and deviations",
    "## Keys",
    "## One dishonest client",
    "## What it needs and what it sends",
]


def headings_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_all_pages_have_one_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same headings in the same order; what runs and draws is left out."""
    import method_pages
    from method_costs import Cost

    monkeypatch.setattr(method_pages, "measured", lambda values: Cost(training=1))
    monkeypatch.setattr(method_pages, "draw", lambda lines, path: None)
    for pages in method_pages.pages_by_family().values():
        for page in pages:
            found = headings_of(method_pages.written(page, tmp_path))
            assert found == [f"# {page.title}", *HEADINGS], page.name


@pytest.mark.parametrize("name", ["fedeba-plus", "filter-decomposition"])
def test_a_page_has_all_parts(name: str, tmp_path: Path) -> None:
    from method_pages import pages_by_family, written
    from repository_pages import GENERATED, places

    pages = [page for pages in pages_by_family().values() for page in pages]
    page = next(page for page in pages if page.name == name)
    text = written(page, tmp_path)
    assert headings_of(text)[1:] == HEADINGS
    for key in page.keys:
        assert f"| `{key.name}` |" in text
    links = re.findall(r"\]\((\.\./[^)\s#]+\.md)", text)
    place = DOCS / GENERATED / "methods"
    goals = {Path(os.path.normpath(place / link)) for link in links}
    # A build of the site makes the copies: a clean clone has none of them yet.
    assert goals and goals <= {*places().values(), *written_pages()}
    assert "Work in multiplications" in text
    if name == "fedeba-plus":
        assert "`gradient`" in text and "p = softmax" in text
        drawn = "The leaderboard has no run of this method" not in text
        assert (tmp_path / "fedeba-plus.svg").exists() is drawn


def test_the_list_links_to_each_page_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import method_pages

    pages = [page for pages in method_pages.pages_by_family().values() for page in pages]
    text = method_pages._listed(method_pages.pages_by_family())
    for page in pages:
        assert f"| [{page.name}]({page.name}.md) | " in text
    problems = sum(p.baseline == "fedavg" for p, _ in method_pages._board()[1])
    assert f"| Baseline of {problems} of {problems} |" in text
    seen = SimpleNamespace(seen=True, difference=SimpleNamespace(mean=-2.0))
    found = [(None, "fedavg", seen), (None, "fedavg", None)]
    monkeypatch.setattr(method_pages, "outcomes", lambda name: found)
    assert method_pages.in_short("fedprox") == (
        "Loses on 1 of 2, no difference is seen on 1 of 2"
    )


def test_a_page_runs_the_method_that_it_is_about() -> None:
    """The quickstart's network is too large for Newton, and makes FedAvg of FedBN."""
    from method_pages import pages_by_family

    pages = {page.name: page for pages in pages_by_family().values() for page in pages}
    assert pages["newton"].values == {"method": "newton", "model": "linear"}
    assert pages["fedbn"].values == {"method": "fedbn", "model": "cnn-fedakd"}


def test_a_page_tells_what_one_liar_does() -> None:
    """By the table of the search, and in the guide's words."""
    from method_liars import SEARCH, _rows_of, one_liar

    average = one_liar("fedavg")
    assert average.startswith("A search of ") and "of the model. The others lost" in average
    assert "The server scores each upload itself" in one_liar("cffl")
    assert one_liar("fedmd").startswith(
        "What one liar of five makes of what clients get: 0.20 if its answer is as long as "
        "the others', 0.20 if it is a million times as long, 0.71 at most.\n\nA liar turns"
    )
    searched = {row["method"] for row in _rows_of(SEARCH)} & METHODS.ours.keys()
    assert searched and all("A search of" in one_liar(name) for name in searched)
    assert one_liar("standalone") == ""
