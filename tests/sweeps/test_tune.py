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
    named = {name.replace("_", "-"): value for name, value in overrides.items()}
    return Space.of(Contender.of_method(method), tuning_base(file, named))


# ---- what is tried


def results_of(space: Space, scores: dict[float, float]) -> list[Result]:
    """Return a whole tuning's results, which score as the rate nearest to theirs."""
    known: list[Result] = []
    while len(known) < 12:
        for number, drawn in proposals.propose(space, known, 12):
            trial = space.trial(number, (0,), drawn)
            rate = float(drawn.get("learning-rate", space.defaults["learning-rate"]))
            rung = min(scores, key=lambda one: abs(math.log(one / rate)))
            known.append(Result(trial, scores[rung], 50.0, learnt=True))
    return known


def rates(results: list[Result]) -> list[float]:
    return [float(r.trial.drawn.get("learning-rate", 0.1)) for r in results]


def test_all_methods_try_the_same_rates(file: Path) -> None:
    """Five rungs, then around the best one; of equal scores the earlier rung is best."""
    flat = {0.1: 2.0, 1.0: 1.0, 0.01: 1.0}
    tried = {}
    for method in ("fedavg", "fedprox", "qffl"):
        space = space_of(file, method)
        results = results_of(space, flat)
        assert results[0].trial.drawn == {}
        assert results[0].trial.settings == {"method": method}
        tried[method] = rates(results)
        assert tried[method][:5] == [0.1, 0.3, 0.03, 1.0, 0.01]
        assert all(0.1 * 10**-0.25 < rate < 0.1 * 10**0.25 for rate in tried[method][5:])
        assert len(set(tried[method])) == 12
    assert tried["fedavg"] == tried["fedprox"] == tried["qffl"]


def test_an_own_key_is_drawn_alike_for_all_methods_that_have_it(file: Path) -> None:
    first, second = (space_of(file, method) for method in ("fedprox", "fedprox-ft"))
    assert first.draw(7, 0.1)["proximal-mu"] == second.draw(7, 0.1)["proximal-mu"]
    assert first.draw(7, 0.1)["proximal-mu"] != first.draw(8, 0.1)["proximal-mu"]


@pytest.mark.parametrize(
    ("best", "beyond"),
    [(10.0, [3.0, 10.0, 30.0]), (3.0, [3.0, 10.0]), (1.0, [3.0]), (0.3, [])],
)
def test_the_range_grows_while_its_end_is_best(
    file: Path, best: float, beyond: list[float]
) -> None:
    ladder = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
    scores = {rate: -abs(math.log(rate / best)) for rate in ladder}
    tried = rates(results_of(space_of(file, "fedavg"), scores))
    end = 5 + len(beyond)
    assert tried[5:end] == beyond
    assert all(best * 10**-0.25 < rate < best * 10**0.25 for rate in tried[end:])


def test_the_range_grows_downwards_and_ends(file: Path) -> None:
    ladder = [0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
    scores = {rate: -rate for rate in ladder}
    tried = rates(results_of(space_of(file, "fedavg"), scores))
    assert tried[5 : 5 + proposals.WIDENED] == [0.003, 0.001, 0.0003, 0.0001]
    assert all(0.00005 < rate < 0.0002 for rate in tried[9:])


def test_a_range_that_failed_does_not_grow(file: Path) -> None:
    space = space_of(file, "fedavg")
    known = [
        Result(space.trial(number, (0,), drawn), FAILED, error="nan")
        for number, drawn in proposals.propose(space, [], 12)
    ]
    assert proposals.rate_beyond(space, known) is None


def test_a_method_of_another_optimiser_has_its_ladder(file: Path) -> None:
    space = space_of(file, "fedakd", optimizer="adam", learning_rate=0.001)
    assert proposals.first_rates(space) == [0.003, 0.0003, 0.01, 0.0001]
    assert proposals.first_rates(space_of(file, "fedavg", learning_rate=0.02)) == [
        *(0.1, 0.3, 0.03, 1.0, 0.01)
    ]


def test_a_trial_of_several_seeds_has_their_mean(file: Path, tmp_path: Path) -> None:
    names = [p.name for p in space_of(file, "fedavg").trial(3, (7, 8), {}).points]
    assert names == ["fedavg-trial-03-seed-7", "fedavg-trial-03-seed-8"]
    parts = [
        trial_of(tmp_path, [row(mean, mean, 0.0)], name=name)
        for mean, name in ((0.5, "a"), (0.9, "b"))
    ]
    points = tuple(point for part in parts for point in part.points)
    both = Trial(parts[0].contender, 0, {}, points)
    assert result_of(both, tmp_path, "mean").score == pytest.approx(70.0)
    lost = Trial(both.contender, 0, {}, (*points, Point((), 0, "", "", "c")))
    failed = result_of(lost, tmp_path, "mean", {"c": "diverged"})
    assert (failed.score, failed.error) == (FAILED, "diverged")


def test_a_drawn_rate_keeps_the_methods_own_optimiser(tmp_path: Path) -> None:
    file = tmp_path / "plain.toml"
    file.write_text('dataset = "digits"\n')
    trial = space_of(file, "fedakd").trial(1, (0,), {"learning-rate": 0.002})
    values = trial.settings
    assert values["optimizer"] == "adam"
    assert values["learning-rate"] == 0.002
    base = tuning_base(file, {})
    assert Experiment.from_values({**base, **values, "seed": 0})["optimizer"] == "adam"


def test_what_is_fixed_is_not_drawn(file: Path) -> None:
    fixed = {"method": "fedprox", "proximal-mu": 1e-6}
    space = Space.of(Contender("placebo", fixed), tuning_base(file, {}))
    assert [key.name for key in space.keys] == ["learning-rate"]
    assert space.trial(1, (0,), space.draw(1, 0.1)).settings["proximal-mu"] == 1e-6


def test_an_options_key_is_drawn_beside_the_methods_own(file: Path) -> None:
    fixed = {"method": "fedprox", "decorrelation-weight": 0.1}
    contender = Contender("fedprox-decorr", fixed, ("decorrelation-weight",))
    space = Space.of(contender, tuning_base(file, {}))
    tuned = {key.name for key in space.keys}
    assert tuned == {"learning-rate", "proximal-mu", "decorrelation-weight"}
    assert space.trial(0, (0,), {}).settings["decorrelation-weight"] == 0.1
    drawn = space.draw(1, 0.1)
    settings = space.trial(1, (0,), drawn).settings
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
    tmp_path: Path,
    rows: list[dict[str, float]],
    status: str = "finished",
    name: str = "a-trial-00",
) -> Trial:
    point = Point((), 0, "", "", name)
    folder = tmp_path / point.name
    folder.mkdir()
    (folder / "experiment.toml").write_text("")
    manifest = {"format": 1, "status": status, "data": {"largest-class-train": 0.3}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = [json.dumps({"round": i + 1, **row}) for i, row in enumerate(rows)]
    lines_path(folder, ROUNDS).write_text("".join(line + "\n" for line in lines))
    return Trial(Contender("a", {}), 0, {}, (point,))


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
    failed = result_of(
        trial_of(tmp_path, ROWS, "failed"), tmp_path, "mean", {"a-trial-00": "diverged"}
    )
    assert failed.score == FAILED
    assert failed.error == "diverged"
    good = Result(failed.trial, -1e9)
    assert best_of([failed, good]) is good


def test_of_equal_scores_the_earlier_trial_wins(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, ROWS)
    results = [Result(Trial(trial.contender, n, {}, trial.points), 7.0) for n in (0, 1, 2)]
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
        (point,) = found.trial.points
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
