"""Leaderboards: the suite, the statistics, the tables, and a whole small board."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_1samp

from fedsuite.core.errors import ConfigError
from fedsuite.results.paired import paired
from fedsuite.sweeps.trials import Contender
from simulations.leaderboard.board import rewrite_page, run_leaderboard
from simulations.leaderboard.page import (
    FINALS,
    TUNING,
    baselines_of,
    choices,
    read_table,
    rows_of,
    write_tables,
)
from simulations.leaderboard.scores import (
    Curve,
    Final,
    Row,
    Tried,
    at_equal_spending,
    holm,
    noise_floor,
    own_model,
    t_test,
    verdicts,
)
from simulations.leaderboard.suite import read_suite

FOLDER = Path(__file__).parents[2] / "simulations/leaderboard"
SUITE = FOLDER / "small.toml"


NO_NOISE = {False: 0.0, True: 0.0}


def final(method: str, seed: int, mean: float, **more: Any) -> Final:
    numbers = {"worst_10": 0.0, "variance": 0.0, "megabytes": 1.0, "seconds": 1.0}
    return Final("p", method, seed, mean, **{**numbers, "untrained": 0, **more})


def row(name: str, means: list[float]) -> Row:
    finals = {seed: final(name, seed, mean) for seed, mean in enumerate(means)}
    return Row(name, False, (), finals, 0)


# ---- statistics


def test_the_interval_of_five_pairs() -> None:
    difference = paired([0.8, 1.2, 0.5, 1.0, 1.5])
    assert difference.mean == pytest.approx(1.0)
    assert difference.half_width == pytest.approx(0.4728, abs=1e-4)
    assert difference.corrected is None
    # A quarter of test rows: sqrt((1/5 + 1/4) / (1/5)) = 1.5 times as wide.
    corrected = paired([0.8, 1.2, 0.5, 1.0, 1.5], 0.25)
    assert corrected.corrected == pytest.approx(1.5 * 0.4728, abs=1e-4)
    assert str(corrected) == "+1.00 [+0.53, +1.47], corrected [+0.29, +1.71] (5)"


def test_holm_multiplies_the_smallest_most() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert holm({}) == {}


def test_equal_differences_are_certain_and_none_is_none() -> None:
    assert t_test([0.0, 0.0, 0.0]) == 1.0
    assert t_test([2.0, 2.0, 2.0]) == 0.0
    numbers = [0.8, 1.2, 0.5, 1.0, 1.5]
    assert t_test(numbers) == pytest.approx(ttest_1samp(numbers, 0.0).pvalue)
    # The interval leaves out 0 where the p-value is below 0.05, and only there.
    for share in (0.6, 0.8, 1.0, 1.2):
        difference = paired(numbers, share)
        assert (difference.mean > difference.corrected) is (t_test(numbers, share) < 0.05)


def test_a_difference_is_seen_above_noise_and_half_a_point() -> None:
    base = row("fedavg", [50.0, 60.0, 70.0, 80.0, 90.0])
    better = row("better", [52.0, 62.1, 71.9, 82.0, 92.1])
    small = row("small", [50.3, 60.31, 70.29, 80.3, 90.3])
    scattered = row("scattered", [60.0, 40.0, 90.0, 70.0, 91.0])
    rows = [base, better, small, scattered]
    found = verdicts(rows, {False: base, True: base}, "mean", NO_NOISE)
    assert {name: verdict.seen for name, verdict in found.items()} == {
        "better": True,
        "small": False,
        "scattered": False,
    }
    assert found["small"].p_value < 0.001
    for noise, seen in ((1.7, True), (2.0, False)):
        # The interval of ``better`` begins at 1.92.
        noisy = verdicts(rows, {False: base, True: base}, "mean", {False: noise, True: 0.0})
        assert noisy["better"].seen is seen


def test_a_difference_that_shared_rows_explain_is_not_seen() -> None:
    base = split_anew(row("fedavg", [50.0, 60.0, 70.0, 80.0, 90.0]), 0, 0)
    means = [50.8, 61.2, 70.5, 81.0, 91.5]
    for test_rows, seen in ((0, True), (25, True), (100, False)):
        better = split_anew(row("better", means), 100, test_rows)
        found = verdicts([base, better], {False: base, True: base}, "mean", NO_NOISE)
        # Halves of 0.47 + nothing, 0.71 and 1.16 around 1.
        assert (found["better"].p_value < 0.05) is seen


def tried(name: str, score: float) -> Tried:
    return Tried("p", name, 0, "", score, score, True, 0.0, "")


def split_anew(given: Row, train_rows: int, test_rows: int) -> Row:
    finals = {
        seed: replace(final, train_rows=train_rows, test_rows=test_rows)
        for seed, final in given.finals.items()
    }
    return replace(given, finals=finals, fresh_splits=True)


def test_the_floor_is_the_largest_placebos_difference_from_what_it_imitates() -> None:
    base = row("fedavg", [50.0, 60.0, 70.0, 80.0, 90.0])
    small = row("small", [50.4, 60.4, 70.4, 80.4, 90.4])
    large = row("large", [49.2, 58.8, 69.5, 79.0, 88.5])
    tuned = replace(row("tuned", [90.0] * 5), own_model=True)
    own = replace(row("own", [90.3] * 5), own_model=True)
    imitated = {"small": "fedavg", "large": "fedavg", "own": "tuned", "absent": "fedavg"}
    floors = noise_floor([base, small, large, tuned, own], imitated, "mean")
    assert floors == pytest.approx({False: 1.0, True: 0.3})
    assert noise_floor([base], imitated, "mean") == {False: 0.0, True: 0.0}


def test_a_choice_is_set_against_the_strongest_reference() -> None:
    """Alone is strongest: what gains on FedAvg alone is not named."""
    suite = read_suite(SUITE)
    problem = suite.problems[0]
    base = [50.0, 60.0, 70.0, 80.0, 90.0]
    rows = [
        row("fedavg", base),
        replace(row("standalone", [mean + 4 for mean in base]), own_model=True),
        replace(row("fedavg-ft", [mean + 3 for mean in base]), own_model=True),
        row(
            "fedeba",
            [mean + gain for mean, gain in zip(base, (2, 2.1, 1.9, 2, 2.2), strict=True)],
        ),
    ]
    shared, own = choices(suite, [(problem, rows)]).splitlines()[3:]
    assert (
        "| one for all | `fedeba` | 72.0 | +2.04 [+1.90, +2.18] over `fedavg` |" in shared
    )
    assert "| one each | `standalone` | 74.0 | none of 1 others is seen above it |" in own
    # A placebo is no method: it is neither counted nor named, whatever it gains.
    placebo = row("placebo", [mean + 9 for mean in base])
    named = replace(suite, placebos={"placebo": "fedavg"})
    assert choices(named, [(problem, [*rows, placebo])]).splitlines()[4] == own
    rows[1] = replace(row("standalone", base), own_model=True)
    rows[2] = replace(row("fedavg-ft", [mean + 1 for mean in base]), own_model=True)
    (_, own) = choices(suite, [(problem, rows)]).splitlines()[3:]
    assert "`fedeba` | 72.0 | +1.04 [+0.90, +1.18] over `fedavg-ft` |" in own


def test_own_models_are_set_against_the_candidate_with_the_best_validation_score() -> None:
    (problem, *_) = read_suite(SUITE).problems
    rows = [
        replace(
            row(name, [mean]), tried=(Tried("p", name, 0, "", score, score, True, 0.0, ""),)
        )
        for name, mean, score in (
            ("fedavg", 50.0, 50.0),
            ("standalone", 60.0, 71.0),
            ("fedavg-ft", 90.0, 70.0),
        )
    ]
    baselines = baselines_of(problem, rows)
    assert baselines is not None
    assert (baselines[False].name, baselines[True].name) == ("fedavg", "standalone")
    assert baselines_of(problem, rows[:2]) is None


def test_clients_own_models_have_a_baseline_of_their_own() -> None:
    assert [own_model(Contender.of_method(m)) for m in ("fedavg", "scaffold")] == [
        False
    ] * 2
    own = ("fedavg-ft", "standalone", "fedper", "ditto", "fedakd", "fedal", "fedproto")
    assert all(own_model(Contender.of_method(method)) for method in own)
    assert own_model(Contender("atoms", {"method": "fedavg", "personal-atoms": True}))


def test_accuracy_at_what_the_baseline_spent() -> None:
    curve = Curve((10.0, 20.0, 30.0), (2.0, 4.0, 6.0), (1.0, 2.0, 3.0))
    base = final("fedavg", 1, 0.0, megabytes=4.0, seconds=0.5)
    found = at_equal_spending(final("dear", 1, 30.0), curve, base)
    assert found.at_equal_megabytes == 20.0
    assert math.isnan(found.at_equal_seconds)


# ---- tables


def test_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    finals = [final("fedavg", 1, 12.5), final("fedal", 2, 1 / 3, at_equal_seconds=2.0)]
    tried = [Tried("p", "fedavg", 0, "defaults", -math.inf, math.nan, False, 0.5, "no, |")]
    write_tables(tmp_path, finals, tried)
    (first, second), (trial,) = (
        read_table(tmp_path / FINALS, Final),
        read_table(tmp_path / TUNING, Tried),
    )
    assert (first.mean, first.seed, first.untrained) == (12.5, 1, 0)
    assert second.mean == pytest.approx(1 / 3)
    assert trial.error == "no, |"
    assert trial.score == -math.inf
    assert trial.learnt is False
    with pytest.raises(ConfigError, match=r"finals\.csv: cannot be read as a table"):
        read_table(tmp_path / FINALS, Tried)


# ---- the suite


def test_a_suite_fills_in_the_method_and_the_validation_rows() -> None:
    suite = read_suite(SUITE)
    digits, shards = suite.problems
    assert digits.base["client-validation-fraction"] == 0.2
    assert shards.base["client-validation-fraction"] == 0.1
    assert [c.name for c in shards.contenders] == ["fedavg", "fedavg-ft", "standalone"]
    assert digits.contenders[3].fixed == {"method": "fedeba"}
    assert digits.contenders[4].fixed == {"method": "fedprox", "proximal-mu": 1e-6}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "Digits, four clients"', "trials = 0", "problems.digits: trials = 0"),
        ("standalone = {}", "", "standalone must be there"),
        ("trials = 2", "trials = 0", "trials = 0: expected a whole number"),
        ("trials = 2", "trails = 2", "key 'trails': expected"),
        ("\nseeds = [1, 2]", "\nseeds = [101]", "seed 101 is among seeds and tuning-seeds"),
        ("\nseeds = [1, 2]", "\nseeds = [1, 1]", "expected different whole numbers"),
        ('placebo = "fedavg"', 'placebo = "nobody"', "placebos: 'nobody'"),
        ('model = "linear"', 'seed = 3\nmodel = "linear"', "sets seed itself"),
        ('model = "linear"', "model = [1]", "expected one value"),
        ('"fedavg-ft", "standalone"]', '"fedmax"]', "'fedmax' does not stand in"),
        ('"fedavg-ft", "standalone"]', '"standalone"]', "own-baselines 'fedavg-ft' does"),
        ("trials = 2", 'objective = "best"', "objective 'best'"),
        ("trials = 2", "trials = ", "not valid TOML"),
    ],
)
def test_a_wrong_suite_is_refused_in_one_line(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    file = tmp_path / "suite.toml"
    text = SUITE.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=words) as caught:
        read_suite(file)
    assert "\n" not in str(caught.value)


# ---- a whole board


def test_a_board_has_failures_as_rows_and_is_a_function_of_its_folder(
    tmp_path: Path, started: list[str]
) -> None:
    output = tmp_path / "board"
    run_leaderboard(SUITE, output)
    # Six and three methods twice, then each that did not fail on two seeds.
    assert len(started) == 12 + 10 + 6 + 6
    page = (output / "README.md").read_text()
    broken = "| broken | defaults | – | – | 0 of 2 | – | – | – | – | – | 0 | 2 |"
    assert broken in page
    assert "A client has 89 to 90 test rows." in page
    # Four rounds of one pass, and nothing sent.
    assert re.search(r"\| standalone \| .* \| 2 of 2 \| 4\.00 \| 0\.00 \|", page)
    assert "| placebo | shared |" in page
    assert max(map(len, page.splitlines())) < 400
    started.clear()
    run_leaderboard(SUITE, output)
    # Only what failed is tried again.
    assert set(started) == {"broken-trial-00", "broken-trial-01"}
    assert (output / "README.md").read_text() == page
    (output / "README.md").unlink()
    rewrite_page(SUITE, output)
    assert (output / "README.md").read_text() == page
    # A problem that runs alone leaves the lines of the other one where they are.
    table = (output / FINALS).read_text()
    run_leaderboard(SUITE, output, problems=["digits"])
    assert (output / FINALS).read_text() == table
    assert "## Digits, two classes each" in (output / "README.md").read_text()


def test_one_more_method_runs_alone(tmp_path: Path, started: list[str]) -> None:
    file, output = tmp_path / "suite.toml", tmp_path / "board"
    text = SUITE.read_text().replace('broken = { method = "fedavg", drop-out = 1.0 }\n', "")
    file.write_text(text.replace("fedeba = {}\n", ""))
    run_leaderboard(file, output, problems=["digits"])
    started.clear()
    file.write_text(text)
    run_leaderboard(file, output, problems=["digits"])
    assert sorted(started) == [
        *("fedeba-seed-1", "fedeba-seed-2", "fedeba-trial-00", "fedeba-trial-01")
    ]
    (problem, _) = read_suite(file).problems
    finals = read_table(output / FINALS, Final)
    rows = rows_of(problem, finals, read_table(output / TUNING, Tried))
    assert [row.name for row in rows] == [c.name for c in problem.contenders]
    assert all(len(row.finals) == 2 and len(row.tried) == 2 for row in rows)


def test_names_that_the_suite_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="problem 'cifar': expected one of digits, shards"
    ):
        run_leaderboard(SUITE, tmp_path, problems=["cifar"])
    with pytest.raises(ConfigError, match="method 'fedmax': the suite has"):
        run_leaderboard(SUITE, tmp_path, methods=["fedmax"])
