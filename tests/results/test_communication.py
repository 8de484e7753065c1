"""Accuracy against what was sent: costs and targets by hand."""

import numpy as np
import pytest

from fedsuite.core.errors import RunError
from fedsuite.results.communication import (
    Curve,
    Direction,
    bytes_figure,
    common_targets,
    costs,
    curve_table,
    curves,
    reached,
    usual_metric,
)
from fedsuite.results.groups import group_runs
from fedsuite.results.reader import load_run
from fedsuite.results.writer import RunFolder
from tests.results.made_runs import written

EXPERIMENT = {"method": "fedavg", "dataset": "digits", "seed": 0, "clients-per-round": 2}


def made(path, rounds, **experiment):
    """Write a run whose rounds have these columns, and read it."""
    changes = {name.replace("_", "-"): value for name, value in experiment.items()}
    folder = RunFolder.create(path, EXPERIMENT | changes, {"seed": 0})
    rows = [{"round": number, **row} for number, row in enumerate(rounds, start=1)]
    folder.append("rounds", rows)
    folder.finish("finished")
    return load_run(path)


def sent(up, down, accuracy=None):
    return {
        "bytes_up": up,
        "bytes_down_train": down,
        "bytes_down": down + 4000,
        "accuracy_mean": accuracy,
    }


def ledgers(true, nominal, accuracy):
    return {
        **sent(1, 1, accuracy),
        "true_parameters_up": true,
        "true_parameters_down": 10 * true,
        "nominal_parameters_up": nominal,
        "nominal_parameters_down": nominal,
    }


def test_bytes_sent_add_up(tmp_path):
    run = made(tmp_path / "a", [sent(40, 80), sent(4, 8)])
    assert costs(run, Direction.UP) == {"sent": {1: 10, 2: 11}}
    assert costs(run, Direction.DOWN) == {"sent": {1: 20, 2: 22}}
    assert costs(run, Direction.BOTH) == {"sent": {1: 30, 2: 33}}


def test_two_ledgers(tmp_path):
    run = made(tmp_path / "a", [ledgers(5, 3, 0.5), ledgers(7, 1, 0.6)])
    assert costs(run, Direction.BOTH) == {
        "true": {1: 55, 2: 132},
        "nominal": {1: 6, 2: 8},
    }
    assert costs(run, Direction.UP)["true"] == {1: 5, 2: 12}


def test_coded_uploads_are_a_ledger_of_their_own(tmp_path):
    """320 bits are 10 parameters of float32; what goes down stays as it was sent."""
    rows = [{**sent(400, 80), "coded_bits_up": 320}, {**sent(400, 80), "coded_bits_up": 32}]
    run = made(tmp_path / "a", rows)
    assert costs(run, Direction.UP) == {"sent": {1: 100, 2: 200}, "coded": {1: 10, 2: 11}}
    assert costs(run, Direction.DOWN) == {"sent": {1: 20, 2: 40}}
    assert costs(run, Direction.BOTH)["coded"] == {1: 30, 2: 51}


def test_older_runs_know_only_uploads(tmp_path):
    run = made(tmp_path / "a", [{"bytes_up": 40, "accuracy_mean": 0.5}])
    assert costs(run, Direction.UP) == {"sent": {1: 10}}
    with pytest.raises(RunError, match="no column bytes_down_train"):
        costs(run, Direction.BOTH)


def test_curves_are_means_over_seeds_at_common_evaluations(tmp_path):
    made(tmp_path / "a", [sent(40, 0, 0.2), sent(40, 0), sent(40, 0, 0.4)])
    made(tmp_path / "b", [sent(80, 0, 0.4), sent(80, 0, 0.5), sent(80, 0, 0.8)], seed=1)
    (group,) = group_runs([load_run(tmp_path / name) for name in "ab"])
    (curve,) = curves(group, "accuracy_mean", Direction.BOTH)
    assert curve.rounds.tolist() == [1, 3]
    assert curve.parameters.tolist() == [15, 45]
    assert curve.accuracies == pytest.approx([0.3, 0.6])
    assert curve.num_seeds == 2
    assert curve.deviations == pytest.approx([0.02**0.5, 0.08**0.5])


def test_accuracy_against_bytes_of_every_evaluated_round(tmp_path):
    made(tmp_path / "a", [sent(4_000_000, 9, 0.2), sent(4_000_000, 9, 0.4)])
    made(tmp_path / "b", [sent(4_000_000, 9, 0.4), sent(6_000_000, 9, 0.8)], seed=1)
    made(tmp_path / "c", [sent(10, 9), sent(10, 9, 0.5)], method="fedmd")
    groups = group_runs([load_run(tmp_path / name) for name in "abc"])
    found = [c for g in groups for c in curves(g, "accuracy_mean", Direction.UP)]
    table = curve_table(found, "accuracy_mean", "up")
    label, other = (group.label for group in groups)
    assert [row[:4] for row in table.rows] == [
        (label, "sent", 2, 1),
        (label, "sent", 2, 2),
        (other, "sent", 1, 2),
    ]
    assert [row[4:] for row in table.rows] == [
        pytest.approx((1, 4, 30, 100 * 0.02**0.5)),
        pytest.approx((2.25, 9, 60, 100 * 0.08**0.5)),
        (pytest.approx(5e-6), pytest.approx(2e-5), pytest.approx(50), None),
    ]
    axes = bytes_figure(found, "accuracy_mean", "up").axes[0]
    assert axes.get_xscale() == "log"
    assert list(axes.get_lines()[0].get_xdata()) == pytest.approx([4, 9])
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).y1 == pytest.approx(60 + 100 * 0.08**0.5)


def test_the_whole_test_part_counts_where_all_runs_have_it(tmp_path):
    whole = {"evaluate_whole_test_accuracy": 0.1}
    a = made(tmp_path / "a", [{**sent(1, 1, 0.5), **whole}])
    b = made(tmp_path / "b", [sent(1, 1, 0.5)])
    assert usual_metric([a]) == "evaluate_whole_test_accuracy"
    assert usual_metric([a, b]) == "accuracy_mean"


def curve(label, accuracies, per_round):
    rounds = np.arange(1, len(accuracies) + 1)
    return Curve(label, "sent", rounds, rounds * float(per_round), np.array(accuracies))


def test_what_targets_cost():
    found = [curve("dense", (0.3, 0.5, 0.7), 100), curve("factored", (0.5, 0.4, 0.8), 50)]
    assert common_targets(found) == pytest.approx([0.35, 0.525, 0.63, 0.7])
    assert reached(found, [0.5, 0.7]) == [
        ("dense", "sent", 0.5, 2, 200, 1),
        ("factored", "sent", 0.5, 1, 50, 4),
        ("dense", "sent", 0.7, 3, 300, 1),
        ("factored", "sent", 0.7, 3, 150, 2),
    ]
    with pytest.raises(RunError, match=r"dense never reaches 75 %, its best is 70\.00 %"):
        reached(found, [0.75])


def test_communication_command(analyse, tmp_path):
    made(tmp_path / "a", [sent(4_000_000, 0, 0.2), sent(4_000_000, 0, 0.8)])
    made(
        tmp_path / "b",
        [ledgers(100_000, 10_000, 0.8), ledgers(100_000, 10_000, 0.9)],
        clients_per_round=3,
    )
    folders = (tmp_path / "a", tmp_path / "b")
    code, out, err = analyse("communication", *folders, "--target", 80)
    assert (code, err) == (0, "")
    assert "down and up" in out
    rows = written("communication")
    assert [(row["ledger"], row["round"]) for row in rows] == [
        ("sent", "2"),
        ("true", "1"),
        ("nominal", "1"),
    ]
    assert [float(row["parameters (M)"]) for row in rows] == [2, 1.1, 0.02]
    assert [float(row["MB"]) for row in rows] == pytest.approx([8, 4.4, 0.08])
    assert float(rows[2]["times less than the first"]) == pytest.approx(100)
    ends = written("communication_curves")
    assert [(row["round"], float(row["MB"])) for row in ends] == [
        *(("1", 4), ("2", 8)),
        *(("1", pytest.approx(4.4)), ("2", pytest.approx(8.8))),
        *(("1", pytest.approx(0.08)), ("2", pytest.approx(0.16))),
    ]
