"""Time of a round: what is timed, and the rounds of Table 3 from the bars of Figure 3a."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import RunError
from fedsuite.core.keys import Value
from fedsuite.results.groups import group_runs
from fedsuite.results.reader import Run, load_run
from fedsuite.results.round_time import (
    APART,
    SCORED,
    UNEVALUATED,
    Clock,
    chosen,
    equal_rounds,
    instructions,
    time_figure,
    timing,
)
from fedsuite.results.writer import RunFolder
from tests.results.made_runs import written

FIGURE_3A = {
    **{"fedavg": (181.4, 80), "cffl": (341.1, 43), "cgsv": (238.2, 61)},
    **{"fedave": (377.1, 39), "fedsac": (224.4, 65), "feddc": (289.1, 50)},
    "fedakd": (363.5, 40),
}
"""Seconds a round, and rounds in the time of FedAKD's 40; the paper prints 51 for FedDC."""


def row(wall: float, evaluation: float, evaluated: bool = True) -> Any:
    """Return a round whose processor time is twice its wall-clock time."""
    found: dict[str, Any] = {"seconds": wall, "seconds_evaluate": evaluation}
    found["cpu_seconds"] = 2 * (wall - evaluation)
    found["evaluation_cpu_seconds"] = 2 * evaluation
    if evaluated:
        found["evaluate_num_examples"] = 10
    return found


def made(path: Path, rounds: list[Any], **keys: Value) -> Run:
    experiment: dict[str, Value] = {"method": "fedavg", "engine": "local", "seed": 0}
    changes = {name.replace("_", "-"): value for name, value in keys.items()}
    folder = RunFolder.create(path, experiment | changes, {})
    rows = [{"round": number, **found} for number, found in enumerate(rounds, start=1)]
    folder.append("rounds", rows)
    folder.finish("finished")
    return load_run(path)


@pytest.mark.parametrize(("seconds", "expected"), FIGURE_3A.values(), ids=FIGURE_3A)
def test_rounds_of_the_paper(seconds: float, expected: int) -> None:
    assert equal_rounds(40, 363.5, seconds) == expected


def test_to_the_nearest_halves_up_and_at_least_one() -> None:
    assert [equal_rounds(5, 1.0, 2.0), equal_rounds(9, 1.0, 2.0)] == [3, 5]
    assert equal_rounds(1, 1.0, 100.0) == 1


@given(st.integers(1, 1000), st.floats(0.01, 100), st.floats(0.01, 100))
def test_no_other_number_of_rounds_comes_nearer(n: int, budget: float, own: float) -> None:
    found = equal_rounds(n, budget, own)
    gap = abs(found * own - n * budget)
    assert gap <= own / 2 * (1 + 1e-9) or found == 1
    assert equal_rounds(n, budget, budget) == n


def test_evaluation_is_taken_off_and_the_first_round_left_out(tmp_path: Path) -> None:
    rounds = [row(99, 1), row(3, 1), row(9, 5), row(8, 2)]
    (group,) = group_runs([made(tmp_path / "a", rounds)])
    found = timing(group)
    assert (found.how, found.num_timed) == (APART, 3)
    # 2, 4, 6
    assert found.seconds == {Clock.WALL: (3, 4, 5), Clock.CPU: (6, 8, 10)}


def test_rounds_without_evaluation_where_it_cannot_be_taken_off(tmp_path: Path) -> None:
    scored = [row(50, 1), row(1, 0, False), row(9, 1), row(3, 0, False), row(9, 1)]
    (group,) = group_runs([made(tmp_path / "a", scored, score_trained=True)])
    found = timing(group)
    assert (found.how, found.num_timed) == (UNEVALUATED, 2)
    assert found.median(Clock.WALL) == 2


def test_what_cannot_be_told_apart_is_said(tmp_path: Path) -> None:
    rounds = [row(5, 1), row(4, 1)]
    (scored,) = group_runs([made(tmp_path / "a", rounds, score_trained=True)])
    assert (timing(scored).how, timing(scored).median(Clock.WALL)) == (SCORED, 3)


def test_seeds_are_timed_together_and_one_round_is_better_than_none(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / "a", [row(9, 0), row(2, 0), row(2, 0)]),
        made(tmp_path / "b", [row(5, 0)], seed=1),
    ]
    (group,) = group_runs(runs)
    assert timing(group).num_timed == 3
    assert timing(group).seconds[Clock.WALL] == (2, 2, 3.5)


def test_processor_time_of_other_processes_is_not_known(tmp_path: Path) -> None:
    (group,) = group_runs([made(tmp_path / "a", [row(5, 1), row(4, 1)], engine="ray")])
    found = timing(group)
    assert list(found.seconds) == [Clock.WALL]
    with pytest.raises(RunError, match="fedavg: no cpu time"):
        found.median(Clock.CPU)
    (empty,) = group_runs([made(tmp_path / "b", [])])
    with pytest.raises(RunError, match="no round with a time"):
        timing(empty)


def test_figure_has_a_bar_for_each_experiment(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / "a", [row(2, 0)]),
        made(tmp_path / "b", [row(6, 0)], method="fedakd", engine="ray"),
    ]
    wall, cpu = time_figure([timing(group) for group in group_runs(runs)]).axes
    assert [bar.get_width() for bar in wall.patches] == [2, 6]
    assert [bar.get_width() for bar in cpu.patches] == [4]
    assert [text.get_text() for text in wall.get_yticklabels()] == ["fedavg", "fedakd"]


def test_instructions_resume_what_is_too_short_and_cut_what_is_too_long(
    tmp_path: Path,
) -> None:
    runs = [
        made(tmp_path / "a run", [row(1, 0)] * 2),
        made(tmp_path / "b", [row(1, 0)] * 4, method="fedakd"),
    ]
    timings = [timing(group) for group in group_runs(runs)]
    first, second, resume, fairness = instructions(timings, [3, 2])
    assert [first, second] == ["fedavg: --set num-rounds=3", "fedakd: --set num-rounds=2"]
    a, b = (str(run.path) for run in runs)
    assert shlex.split(resume) == ["fedsuite", "resume", a, "--num-rounds", "3"]
    assert shlex.split(fairness) == [
        *("fedsuite", "fairness", a, b),
        *("--at-round=fedavg=3", "--at-round=fedakd=2"),
    ]


def test_usual_experiments_are_found_by_method_whatever_their_labels(
    tmp_path: Path,
) -> None:
    runs = [
        made(tmp_path / "a", [row(1, 0)], method="cgsv", clients=2),
        made(tmp_path / "b", [row(1, 0)], method="fedakd", clients=2),
        made(tmp_path / "c", [row(1, 0)], method="fedakd", clients=3),
    ]
    timings = [timing(group) for group in group_runs(runs)]
    assert chosen(timings, None, "fedakd").label == "fedakd, clients=2"
    assert chosen(timings, None, "fedavg").label == "cgsv, clients=2"
    assert chosen(timings, "fedakd, clients=3", "cgsv").runs[0].path == runs[2].path


def test_command(analyse: Any, tmp_path: Path) -> None:
    made(tmp_path / "a", [row(2.5, 0.5)] * 3)
    made(tmp_path / "b", [row(9.5, 0.5)] * 3, method="fedakd")
    made(tmp_path / "c", [row(3.5, 0.5)] * 3, method="cgsv")
    folders = [tmp_path / name for name in "abc"]
    code, out, err = analyse("round-time", *folders)
    assert (code, err) == (0, "")
    assert "3 rounds of fedakd, by wall time" in " ".join(out.split())
    assert "fedavg: --set num-rounds=14\n" in out
    rows = {found["experiment"]: found for found in written("round_time")}
    assert [rows[k]["rounds"] for k in ("fedavg", "fedakd", "cgsv")] == ["14", "3", "9"]
    assert [float(rows[k]["times fedavg"]) for k in rows] == [1.0, 4.5, 1.5]
    assert [float(rows[k]["CPU s/round"]) for k in rows] == [4, 18, 6]
    code, _, err = analyse("round-time", *folders)
    assert (code, "analysis/round_time.csv is there already" in err) == (1, True)
    again = (*folders, "--budget", "cgsv", "--rounds", 40, "--baseline", "fedakd")
    code, _, _ = analyse("round-time", *again, "--overwrite", "--clock", "cpu")
    found = written("round_time")
    assert [r["rounds"] for r in found] == ["60", "13", "40"]
    assert float(found[0]["times fedakd"]) == pytest.approx(2 / 9)
    code, _, err = analyse("round-time", *folders, "--budget", "x", "--output", "y")
    assert (code, "no experiment 'x': there are fedavg; fedakd; cgsv" in err) == (1, True)
