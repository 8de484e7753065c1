"""What the page on the board's rules counts is what the tables at those commits give."""

import importlib.util
import subprocess

import pytest

from tests.results_pages.recomputed import SIMULATIONS, absent

FOLDER = SIMULATIONS / "leaderboard"


def test_both_rules_counts_stand_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SIMULATIONS.parent)
    spec = importlib.util.spec_from_file_location("history", FOLDER / "history.py")
    history = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(history)
    for commit in {commit for commits in history.COMMITS.values() for commit in commits}:
        command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
        try:
            found = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("no git here")
        if found.returncode:
            pytest.skip("this clone lacks the board's history")
    assert not absent((FOLDER / "history.md").read_text(), history.lines())
