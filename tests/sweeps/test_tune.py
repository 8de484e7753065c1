"""Tuning: what is tried, what is scored, what is written, and how it goes on."""

import json
import math
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import Value
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.layout import ROUNDS, lines_path
from fedsuite.sweeps import proposals
from fedsuite.sweeps.points import Point
from fedsuite.sweeps.trials import (
    FAILED,
    VALIDATION,
    Contender,
    Result,
    Space,
    Trial,
    best_of,
    objective_of,
    result_of,
)
from fedsuite.sweeps.tune import Budget, tell_divergence, tune_file, tuning_base
from tests.small_runs import write_experiment


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "small.toml")


def space_of(file: Path, method: str, **overrides: Value) -> Space:
    return Space.of(Contender.of_method(method), tuning_base(file, overrides))


# ---- what is tried


def test_the_first_trial_has_the_defaults(file: Path) -> None:
    space = space_of(file, "fedprox")
    assert space.draw(0) == {}
    assert space.values(0, {}) == {"method": "fedprox"}
    assert [key.name for key in space.keys] == ["learning-rate", "proximal-mu"]


def test_more_trials_leave_the_first_ones_as_they_are(file: Path) -> None:
    space = space_of(file, "fedprox")
    drawn = [space.draw(number) for number in range(5)]
    assert drawn == [space.draw(number) for number in range(5)]
    assert len({json.dumps(values) for values in drawn}) == 5
    assert space_of(file, "ditto").draw(1) != drawn[1]


def test_trials_of_other_problems_are_other_trials(file: Path) -> None:
    text = file.read_text()
    first = space_of(file, "fedprox").draw(1)
    file.write_text(text + "label-noise = 0.1\n")
    assert space_of(file, "fedprox").draw(1) != first


def test_a_drawn_rate_keeps_the_methods_own_optimiser(tmp_path: Path) -> None:
    file = tmp_path / "plain.toml"
    file.write_text('dataset = "digits"\n')
    trial = space_of(file, "fedakd").trial(1, 0, {"learning-rate": 0.002})
    values = dict(trial.point.settings)
    assert values["optimizer"] == "adam"
    assert values["learning-rate"] == 0.002
    base = tuning_base(file, {})
    assert Experiment.from_values({**base, **values, "seed": 0})["optimizer"] == "adam"


def test_what_is_fixed_is_not_drawn(file: Path) -> None:
    fixed = {"method": "fedprox", "proximal-mu": 1e-6}
    space = Space.of(Contender("placebo", fixed), tuning_base(file, {}))
    assert [key.name for key in space.keys] == ["learning-rate"]
    assert dict(space.trial(1, 0, space.draw(1)).point.settings)["proximal-mu"] == 1e-6


def test_an_options_key_is_drawn_beside_the_methods_own(file: Path) -> None:
    fixed = {"method": "fedprox", "decorrelation-weight": 0.1}
    contender = Contender("fedprox-decorr", fixed, ("decorrelation-weight",))
    space = Space.of(contender, tuning_base(file, {}))
    tuned = {key.name for key in space.keys}
    assert tuned == {"learning-rate", "proximal-mu", "decorrelation-weight"}
    assert dict(space.trial(0, 0, {}).point.settings)["decorrelation-weight"] == 0.1
    drawn = space.draw(1)
    settings = dict(space.trial(1, 0, drawn).point.settings)
    assert settings["decorrelation-weight"] == drawn["decorrelation-weight"] != 0.1


def test_a_key_without_values_to_try_cannot_be_tuned(file: Path) -> None:
    with pytest.raises(ConfigError, match="fedavg: key 'batch-size' cannot be tuned"):
        Space.of(Contender.of_method("fedavg", ["batch-size"]), tuning_base(file, {}))


@pytest.mark.parametrize("key", ["dp-noise-multiplier", "target-epsilon"])
def test_noise_whose_epsilon_is_of_one_run_is_refused(file: Path, key: str) -> None:
    base = tuning_base(file, {key: 1.0, "dp-delta": 1e-3})
    with pytest.raises(ConfigError, match=f"fedavg: key {key} with tuning"):
        Space.of(Contender.of_method("fedavg"), base)


def test_clients_hold_out_a_tenth_unless_told_otherwise(file: Path) -> None:
    assert tuning_base(file, {})[VALIDATION] == 0.1
    assert tuning_base(file, {VALIDATION: 0.25})[VALIDATION] == 0.25


@pytest.mark.parametrize(
    ("method", "words"), [("fedpox", "fedsuite methods"), ("fedsac", "fedsac: ")]
)
def test_a_method_that_cannot_run_is_refused_before_the_first_trial(
    file: Path, tmp_path: Path, started: list[str], method: str, words: str
) -> None:
    overrides: dict[str, Value] = {"server-validation-fraction": 0.0}
    if method == "fedsac":
        overrides = {"dataset": "digits", "model": "mlp", "optimizer": "adam"}
    with pytest.raises(ConfigError, match=words):
        tune_file(file, [method], Budget(2), tmp_path / "tuning", overrides)
    assert not started


# ---- what is scored


def trial_of(
    tmp_path: Path, rows: list[dict[str, float]], status: str = "finished"
) -> Trial:
    point = Point((), 0, "", "", "a-trial-00")
    folder = tmp_path / point.name
    folder.mkdir()
    (folder / "experiment.toml").write_text("")
    manifest = {"format": 1, "status": status, "data": {"largest-class-train": 0.3}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = [json.dumps({"round": i + 1, **row}) for i, row in enumerate(rows)]
    lines_path(folder, ROUNDS).write_text("".join(line + "\n" for line in lines))
    return Trial(Contender("a", {}), 0, {}, point)


def row(mean: float, worst: float, variance: float, test: float = 0.0) -> dict[str, float]:
    return {
        "validation_accuracy_mean": mean,
        "validation_accuracy_worst10": worst,
        "validation_accuracy_variance": variance,
        "accuracy_mean": test,
        "accuracy_worst10": test,
        "accuracy_variance": test,
    }


ROWS = [row(0.99, 0.9, 1.0), row(0.2, 0.0, 9.0), row(0.4, 0.1, 6.0), row(0.6, 0.2, 3.0)]


@pytest.mark.parametrize(
    ("objective", "score"), [("mean", 40), ("worst-10", 10), ("variance", -6)]
)
def test_the_score_is_the_mean_of_the_last_three_evaluations(
    tmp_path: Path, objective: str, score: float
) -> None:
    found = result_of(trial_of(tmp_path, ROWS), tmp_path, objective_of(objective))
    assert found.score == pytest.approx(score)
    assert found.accuracy == pytest.approx(40)
    assert found.learnt


def test_no_test_row_has_a_part_in_the_score(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    lucky = [
        {**line, **dict.fromkeys(("accuracy_mean", "accuracy_worst10"), 1.0)}
        for line in ROWS
    ]
    scores = {
        result_of(trial_of(tmp_path / name, rows), tmp_path / name, "worst-10").score
        for name, rows in (("a", ROWS), ("b", lucky))
    }
    assert len(scores) == 1


def test_a_run_that_failed_scores_less_than_any(tmp_path: Path) -> None:
    failed = result_of(trial_of(tmp_path, ROWS, "failed"), tmp_path, "mean", "diverged")
    assert failed.score == FAILED
    assert failed.error == "diverged"
    good = Result(failed.trial, -1e9)
    assert best_of([failed, good]) is good


def test_of_equal_scores_the_earlier_trial_wins(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, ROWS)
    results = [Result(Trial(trial.contender, n, {}, trial.point), 7.0) for n in (0, 1, 2)]
    assert best_of(results) is results[0]


def test_a_method_that_learns_nothing_in_most_of_its_space_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(tmp_path, ROWS)
    learnt, lost = Result(trial, 1.0, 50.0, learnt=True), Result(trial, FAILED, error="nan")
    tell_divergence([learnt, learnt, lost])
    assert not capsys.readouterr().out
    tell_divergence([learnt, lost, lost])
    assert "a: 2 of 3 trials learnt nothing, 2 of them failed" in capsys.readouterr().out


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ConfigError, match="mean, worst-10, variance"):
        objective_of("best")


# ---- Optuna


def optuna_results(space: Space) -> list[Result]:
    """Twenty results that favour large rates, one of them failed."""
    results = []
    for number in range(proposals.RANDOM):
        trial = Trial(space.contender, number, space.draw(number), Point((), 0, ""))
        rate = float(trial.drawn.get("learning-rate", 0.1))
        results.append(
            Result(
                trial,
                FAILED if number == 7 else 100 + math.log(rate),
                error="" if number != 7 else "x",
            )
        )
    return results


def test_later_trials_follow_the_scores(file: Path) -> None:
    space = space_of(file, "fedprox")
    results = optuna_results(space)
    batch = proposals.propose(space, results, 30)
    assert [number for number, _ in batch] == [20, 21, 22, 23]
    assert batch == proposals.propose(space, results, 30)
    default = float(space.defaults["learning-rate"])
    rates = [float(values["learning-rate"]) for _, values in batch]
    assert min(rates) > default
    assert len(proposals.propose(space, results, 21)) == 1


def test_many_trials_without_optuna_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'optuna"):
        proposals.check_installed()


# ---- whole tunings


def test_a_tuning_writes_best_values_and_goes_on_where_it_stopped(
    file: Path, tmp_path: Path, started: list[str]
) -> None:
    output = tmp_path / "tuning"
    best = tune_file(file, ["fedavg", "qffl"], Budget(2), output, {})
    assert started == [f"{m}-trial-0{t}" for m in ("fedavg", "qffl") for t in (0, 1)]
    started.clear()
    # One more method and one more trial: nothing is run twice.
    again = tune_file(file, ["fedavg", "qffl", "fedprox"], Budget(3), output, {})
    assert sorted(started) == [
        *("fedavg-trial-02", "fedprox-trial-00", "fedprox-trial-01"),
        *("fedprox-trial-02", "qffl-trial-02"),
    ]
    for name, found in again.items():
        chosen = Experiment.load(output / name / "best.toml")
        point = found.trial.point
        assert chosen.replace(seed=0).fingerprint == point.fingerprint
        assert best.get(name, found).score <= found.score
    page = (output / "README.md").read_text()
    assert "| qffl |" in page
    assert page.count("\n| fedprox |") == 4
    assert (output / "trials.csv").read_text().count("\n") == 10


def test_a_method_whose_trials_all_fail_is_an_error_and_the_others_are_kept(
    file: Path, tmp_path: Path, started: list[str]
) -> None:
    output = tmp_path / "tuning"
    with pytest.raises(RunError, match="all trials of fedavg failed"):
        tune_file(file, ["fedavg"], Budget(1), output, {"drop-out": 1.0, "num-rounds": 4})
    assert "–" in (output / "README.md").read_text()
    assert not (output / "fedavg" / "best.toml").exists()
