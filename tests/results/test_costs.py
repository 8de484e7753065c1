"""What accuracy costs: sums, targets and rounds by hand."""

import pytest

from fedsuite.core.errors import RunError
from fedsuite.results.cost_curves import cost_curve, costs_of_rounds
from fedsuite.results.costs import (
    common_targets,
    usual_metric,
)
from fedsuite.results.groups import group_runs
from fedsuite.results.reader import load_run
from fedsuite.results.report.cost_figures import cost_figures
from fedsuite.results.score import score_of
from fedsuite.results.writer import RunFolder

MB = 1_000_000


def row(accuracy=None, up=1, down=2, wall=3.0, evaluation=1.0):
    """Return a round whose processor time is twice its wall-clock time."""
    return {
        "bytes_up": up * MB,
        "bytes_down_train": down * MB,
        "seconds": wall,
        "seconds_evaluate": evaluation,
        "cpu_seconds": 2 * (wall - evaluation),
        "accuracy_mean": accuracy,
    }


def made(path, rounds, **keys):
    experiment = {"method": "fedavg", "engine": "local", "seed": 0} | keys
    folder = RunFolder.create(path, experiment, {})
    rows = [{"round": number, **one} for number, one in enumerate(rounds, start=1)]
    folder.append("rounds", rows)
    folder.finish("finished")
    return load_run(path)


def test_costs_are_sums_without_evaluation_and_means_over_seeds(tmp_path):
    runs = [
        made(tmp_path / "a", [row(0.2, wall=9), row(), row(0.4), row(0.8)]),
        made(
            tmp_path / "b", [row(0.4, wall=5), row(0.5), row(0.6, up=7), row(0.8)], seed=1
        ),
    ]
    (group,) = group_runs(runs)
    curve = cost_curve(group, "accuracy_mean")
    assert curve.rounds.tolist() == [1, 3, 4]
    assert curve.accuracies == pytest.approx([0.3, 0.5, 0.8])
    assert curve.costs["MB up"].tolist() == [1, 6, 7]
    assert curve.costs["MB down"].tolist() == [2, 6, 8]
    # 8 and 4 seconds in the first round, then 2 in each.
    assert curve.costs["seconds"].tolist() == [6, 10, 12]
    assert curve.costs["CPU s"].tolist() == [12, 20, 24]
    # The first round is left out.
    assert (curve.of_a_round["seconds"], curve.of_a_round["CPU s"]) == (2, 4)
    assert curve.cells(0.45) == [3, 6, 6, 10, 20, None]
    assert curve.cells(0.9) == [None] * 6
    assert common_targets([curve]) == [0.4, 0.6, 0.72, 0.8]


def test_what_a_run_does_not_say_is_unknown(tmp_path):
    old = {"seconds": 3.0, "accuracy_mean": 0.5, "cpu_seconds": 1.0}
    run = made(tmp_path / "a", [old], engine="ray")
    found = costs_of_rounds(run)
    assert found["seconds"].tolist() == [3]
    (group,) = group_runs([run])
    # Clients of another engine work in other processes.
    assert cost_curve(group, "accuracy_mean").cells(0.5) == [1, None, None, 3, None, None]


def test_virtual_hours_are_those_since_the_run_began(tmp_path):
    times = [
        {**row(share), "virtual_seconds": s} for share, s in ((0.2, 1800), (0.6, 5400))
    ]
    (group,) = group_runs([made(tmp_path / "a", times)])
    curve = cost_curve(group, "accuracy_mean")
    assert curve.costs["virtual h"].tolist() == [0.5, 1.5]
    assert curve.of_a_round["virtual h"] == 1.0
    titles = [figure.title for figure in cost_figures([group], score_of())]
    assert any("virtual time" in title for title in titles)


def test_seeds_without_a_common_evaluation_are_refused(tmp_path):
    runs = [
        made(tmp_path / "a", [row(0.5), row()]),
        made(tmp_path / "b", [row(), row(0.5)], seed=1),
    ]
    (group,) = group_runs(runs)
    with pytest.raises(RunError, match="no evaluated round in common"):
        cost_curve(group, "accuracy_mean")
    with pytest.raises(RunError, match="no column x in its rounds"):
        cost_curve(group, "x")


def test_the_whole_test_part_counts_where_all_runs_have_it(tmp_path):
    whole = {"evaluate_whole_test_accuracy": 0.1}
    a = made(tmp_path / "a", [{**row(0.5), **whole}])
    b = made(tmp_path / "b", [row(0.5)])
    assert usual_metric([a]) == "evaluate_whole_test_accuracy"
    assert usual_metric([a, b]) == "accuracy_mean"
