"""What is printed while runs are chosen is what they are chosen by."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedsuite.results.layout import CLIENTS, lines_path
from fedsuite.results.reader import load_run
from fedsuite.sweeps.trials import Objective, objective_of, score_of, score_words
from fedsuite.sweeps.tune import Budget, tune_file
from simulations.leaderboard.board import run_leaderboard
from tests.results.made_runs import make_run
from tests.small_runs import write_experiment


def lines_of_runs(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what was printed of finished runs; their own lines would be in their logs."""
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]


@pytest.mark.parametrize("objective", ["mean", "worst-10", "variance"])
def test_a_trial_shows_the_score_that_decides(
    tmp_path: Path, capsys: Any, started: list[str], objective: str
) -> None:
    file, output = write_experiment(tmp_path / "small.toml"), tmp_path / "tuning"
    budget = Budget(2, objective_of(objective))
    tune_file(file, ["fedavg", "qffl"], budget, output, {})
    lines = lines_of_runs(capsys)
    table = list(csv.DictReader((output / "trials.csv").open()))
    for line, row in zip(lines, table, strict=True):
        assert f"  finished, validation score {row['score']} ({objective})  " in line
        assert "accuracy" not in line


SUITE = """
trials = 2
tuning-seeds = [101]
seeds = [1]
[methods]
fedavg = {}
standalone = {}
fedavg-ft = {}
[problems.digits.experiment]
dataset = "digits"
model = "linear"
num-clients = 4
num-rounds = 4
batch-size = 64
"""


def test_a_leaderboard_shows_test_rows_of_finals_alone(
    tmp_path: Path, capsys: Any, started: list[str]
) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    run_leaderboard(tmp_path / "suite.toml", tmp_path / "board")
    lines = lines_of_runs(capsys)
    trials = [line for line in lines if "-trial-" in line]
    finals = [line for line in lines if "-seed-" in line]
    assert len(trials) == 6 and len(finals) == 3
    assert all("validation score" in line and "accuracy" not in line for line in trials)
    table = csv.DictReader((tmp_path / "board/finals.csv").open())
    for line, row in zip(finals, table, strict=True):
        assert f"mean test accuracy {float(row['mean']):.2f} %" in line


def test_rounds_of_a_run_with_validation_rows_show_these(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedsuite

    monkeypatch.chdir(tmp_path)
    file = write_experiment(tmp_path / "small.toml", client_validation_fraction=0.2)
    run = fedsuite.run(file, overrides={"run-name": "x"})
    shown = capsys.readouterr().out.splitlines()[1]
    (mean,) = re.findall(r"mean validation accuracy +(\d+\.\d\d)%", shown)
    assert float(mean) == pytest.approx(
        100 * run.rounds[-1]["validation_accuracy_mean"], abs=0.01
    )
    assert " mean accuracy" not in shown


# Clients without a score


def diverged(path: Path, *rounds: tuple[float, ...]) -> Path:
    """Make a run of four clients, whose validation accuracies of each round are given."""
    make_run(path, accuracies=rounds)
    for table in (CLIENTS, "rounds"):
        file = lines_path(path, table)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            for name in [name for name in line if "accuracy" in name]:
                line[f"validation_{name}"] = line.pop(name)
            count = len(rounds[line["round"] - 1])
            if table == "rounds" and count < 4:
                line["validation_accuracy_clients"] = count
                line["validation_accuracy_clients_asked"] = 4
            line["validation_examples"] = 10
            line["validation_accuracy_variance"] = 0.0
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("objective", "score"),
    [("mean", 40.0), ("worst-10", 0.0), ("variance", -1600.0)],
)
def test_a_client_without_a_score_counts_as_nothing(
    tmp_path: Path, objective: Objective, score: float
) -> None:
    run = load_run(diverged(tmp_path / "a", (0.8, 0.8)))
    assert score_of(run, objective) == pytest.approx(score)
    words = f"validation score {score:.2f} ({objective}), 2 of 4 clients have one"
    assert score_words(run, objective) == words


def test_diverged_clients_win_no_choice(tmp_path: Path) -> None:
    whole = load_run(diverged(tmp_path / "whole", (0.6, 0.6, 0.6, 0.4)))
    partial = load_run(diverged(tmp_path / "partial", (0.6, 0.6, 0.6)))
    assert score_of(partial, "mean") < score_of(whole, "mean")
    assert score_of(partial, "worst-10") < score_of(whole, "worst-10")
    assert "of 4" not in score_words(whole, "mean")
