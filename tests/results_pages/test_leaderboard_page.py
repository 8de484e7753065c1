"""The board's page is what its tables give, and README's advice what the page says."""

import re
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from fedsuite.core.errors import ConfigError
from simulations.leaderboard.board import choices_of, rewrite_page
from simulations.leaderboard.page import choices, read_table, with_choices
from simulations.leaderboard.scores import Final
from simulations.leaderboard.suite import read_suite
from tests.results_pages.recomputed import SIMULATIONS, interval

SUITE = Path("simulations/leaderboard/suite.toml")
RESULTS = Path("simulations/leaderboard/results")
FIRST = SIMULATIONS / "leaderboard" / "first"
ROOT = SIMULATIONS.parent


ENDED = (ROOT / RESULTS / "finals.csv").exists()


@pytest.mark.skipif(not ENDED, reason="no problem has been run to its end yet")
def test_the_page_follows_from_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / SUITE.parent, tmp_path / SUITE.parent)
    monkeypatch.chdir(tmp_path)
    rewrite_page(SUITE, RESULTS)
    assert (tmp_path / RESULTS / "README.md").read_text() == (
        ROOT / RESULTS / "README.md"
    ).read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/choosing.md"])
def test_a_page_that_advises_has_the_generated_choices(page: str) -> None:
    """A baseline that is swapped by hand, or is not the strongest, differs from it."""
    suite = read_suite(ROOT / SUITE)
    table = choices_of(suite, ROOT / RESULTS) if ENDED else choices(suite, [])
    text = (ROOT / page).read_text()
    assert with_choices(text, table) == text


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ConfigError, match="add both"):
        with_choices("no marks", "| table |")


def finals(problem: str, method: str) -> dict[int, float]:
    lines = read_table(FIRST / "finals.csv", Final)
    return {f.seed: f.mean for f in lines if (f.problem, f.method) == (problem, method)}


CLAIMS = {
    "docs/how-to/slow_clients.md": [("widths", "heterofl", "fedavg-narrow")],
    "simulations/fedeba/README.md": [("fashion-shards-cnn", "fedeba", "fedavg")],
    "simulations/fedakd/README.md": [("specialties", "fedakd", "standalone")],
}


@pytest.mark.parametrize("page", CLAIMS)
def test_what_pages_say_of_the_board_is_what_it_has(page: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / page).read_text())
    for problem, method, other in CLAIMS[page]:
        ours, theirs = finals(problem, method), finals(problem, other)
        values = [ours[seed] - theirs[seed] for seed in sorted(ours)]
        low, high = interval(values)
        assert f"{fmean(values):+.2f}" in text
        assert f"[{low:+.2f}, {high:+.2f}]" in text
