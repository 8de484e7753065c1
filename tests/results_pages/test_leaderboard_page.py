"""The board's page is what its tables give, and README's advice what the page says."""

import re
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from simulations.leaderboard.board import rewrite_page
from simulations.leaderboard.page import read_table
from simulations.leaderboard.scores import Final
from tests.results_pages.recomputed import SIMULATIONS, interval

SUITE = Path("simulations/leaderboard/suite.toml")
RESULTS = Path("simulations/leaderboard/results")
FIRST = SIMULATIONS / "leaderboard" / "first"
ROOT = SIMULATIONS.parent


@pytest.mark.skipif(
    not (SIMULATIONS / "leaderboard/results/finals.csv").exists(), reason="not run yet"
)
def test_the_page_follows_from_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / SUITE.parent, tmp_path / SUITE.parent)
    monkeypatch.chdir(tmp_path)
    rewrite_page(SUITE, RESULTS)
    assert (tmp_path / RESULTS / "README.md").read_text() == (
        ROOT / RESULTS / "README.md"
    ).read_text()


def finals(problem: str, method: str) -> dict[int, float]:
    lines = read_table(FIRST / "finals.csv", Final)
    return {f.seed: f.mean for f in lines if (f.problem, f.method) == (problem, method)}


CLAIMS = {
    "docs/how-to/choosing.md": [
        ("digits", "cgsv", "fedavg"),
        ("hospitals", "fedrep", "fedavg-ft"),
        ("hospitals", "fedrep", "standalone"),
        ("hospitals", "fedas", "fedavg-ft"),
        ("hospitals", "scaffold", "fedavg"),
        ("specialties", "fedavg-ft", "fedavg"),
        ("fashion-mlp", "fedavg-ft", "fedavg"),
        ("fashion-mlp", "standalone", "fedavg-ft"),
        ("fashion-mlp", "feddyn", "fedavg"),
        ("fashion-shards-cnn", "fedrep", "fedavg-ft"),
        ("fashion-shards-cnn", "fedavg-ft", "fedavg"),
        ("fashion-shards-cnn", "standalone", "fedavg-ft"),
        ("fashion-shards-cnn", "fedeba", "fedavg"),
        ("fashion-shards-cnn", "decomposition", "fedavg"),
        ("cifar10-cnn", "fedrep", "fedavg-ft"),
        ("cifar10-cnn", "fedavg-ft", "fedavg"),
        ("cifar10-cnn", "standalone", "fedavg-ft"),
        ("cifar10-cnn", "decomposition", "fedavg"),
        ("networks", "fedmd-lf", "standalone"),
        ("networks", "fd", "standalone"),
        ("widths", "fedmd-lf", "standalone"),
        ("widths", "heterofl", "fedavg-narrow"),
    ],
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
