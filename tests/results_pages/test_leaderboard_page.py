"""The board's page is what its tables give, and README's advice what the page says."""

import shutil
from pathlib import Path

import pytest

from fedsuite.sweeps.leaderboard import rewrite_page
from tests.results_pages.recomputed import SIMULATIONS

SUITE = Path("simulations/leaderboard/suite.toml")
RESULTS = Path("simulations/leaderboard/results")
ROOT = SIMULATIONS.parent


def test_the_page_follows_from_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / SUITE.parent, tmp_path / SUITE.parent)
    monkeypatch.chdir(tmp_path)
    rewrite_page(SUITE, RESULTS)
    assert (tmp_path / RESULTS / "README.md").read_text() == (
        ROOT / RESULTS / "README.md"
    ).read_text()
