"""Tables of benchmarks, from numbers by hand."""

import pytest
from measuring.tables import (
    ArmRun,
    arm_run,
    disagreements,
    second_core_table,
    speed_table,
    steady,
    work_table,
)
from measuring.watch import Mark, Watched
from page import PAGE, all_tables, filled, glance_table, over_floor, targets_table


def run(arm, seconds, cpu=1.0, accuracy=0.5, fingerprint="a"):
    return ArmRun(arm, seconds, cpu, 3.0, 20.0, 18.0, 100.0, (1.0,), accuracy, fingerprint)


def test_first_and_last_round_do_not_count():
    marks = [Mark(5.0, 4.0), Mark(6.0, 4.5), Mark(8.0, 5.0), Mark(99.0, 90.0)]
    # Rounds 2 and 3 end 3 seconds, and half a processor second each, after round 1.
    assert steady(marks) == (1.5, 0.5)
    found = arm_run("local", Watched(100.0, 91.0, 300.0, tuple(marks), ""))
    assert (found.start, found.rounds) == (5.0, (1.0, 2.0, 91.0))
    assert (found.wall, found.whole_cpu, found.peak_mib) == (100.0, 91.0, 300.0)


def test_two_rounds_are_too_few():
    with pytest.raises(ValueError, match="2 rounds"):
        steady([Mark(1.0, 1.0), Mark(2.0, 2.0)])


def test_ratios_are_of_the_minima_and_of_the_medians():
    runs = [run("floor", s, c) for s, c in ((2.0, 1.0), (4.0, 2.0), (5.0, 4.0))]
    runs += [run("local", s, c, 0.6) for s, c in ((3.0, 3.0), (10.0, 5.0), (11.0, 6.0))]
    lines = speed_table(runs, "floor").splitlines()
    assert lines[2].split(" | ")[:3] == ["| floor", "2.0000, 4.0000", "1.00, 1.00"]
    cells = lines[3].split(" | ")
    assert cells[:5] == [
        "| local",
        "3.0000, 10.0000",
        "1.50, 2.50",
        "3.0000, 5.0000",
        "3.00, 2.50",
    ]
    assert cells[5:] == ["3.0, 3.0", "20.0, 20.0", "18.0, 18.0", "100", "60.00 |"]


def test_without_the_base_there_are_no_ratios():
    cells = speed_table([run("local", 1.0)], "floor").splitlines()[2].split(" | ")
    assert cells[2] == cells[4] == "-"


def test_time_of_a_method_is_set_against_its_work():
    runs = [run("local", 1.0), run("local", 2.0), run("fedal", 3.0), run("fedal", 6.0)]
    row = work_table(runs, {"local": 100.0, "fedal": 250.0}, "local").splitlines()[3]
    # Three times the time for 2.5 times the work.
    assert row.split(" | ")[2:] == ["3.00, 3.00", "250", "2.500", "1.200 |"]


def test_a_second_worker_is_set_against_a_second_core():
    runs = [run("local", s) for s in (6.0, 6.0, 9.0)]
    runs += [run("local-2", s) for s in (4.0, 4.0, 5.0)]
    assert second_core_table(runs) == ""
    # While another run is beside it a round takes 8 seconds: twelve of work in eight.
    runs += [run("local-twice", s) for s in (8.0, 8.0, 9.0)]
    row = second_core_table(runs).splitlines()[2]
    assert row.split(" | ")[3:] == ["1.50, 1.50", "1.50, 1.50 |"]
    runs[-3:] = [run("local-twice", 6.0)]
    assert second_core_table(runs).endswith("| 1.50, 1.50 | 2.00, 2.00 |")


def test_other_bits_and_other_accuracies_are_told():
    runs = [run("floor", 1.0), run("local", 1.0), run("pfl", 1.0, 1.0, 0.52, "b")]
    assert disagreements(runs, "floor", ("local", "ray"), 0.03) == []
    assert disagreements(runs, "floor", ("local",), 0.01) == [
        "pfl: accuracy 0.5200, floor 0.5000: more than 0.01 apart"
    ]
    runs.append(run("local", 1.0, fingerprint="c"))
    assert disagreements(runs, "floor", ("local",), 0.03) == [
        "local: final parameters differ from those of floor"
    ]
    assert disagreements(runs[1:], "floor", ("local",), 0.0) == []


def test_the_mean_accuracy_of_the_repeats_counts():
    runs = [run("floor", 1.0, accuracy=a) for a in (0.4, 0.6)]
    runs += [run("pfl", 1.0, accuracy=a) for a in (0.45, 0.57)]
    assert disagreements(runs, "floor", (), 0.011) == []
    assert len(disagreements(runs, "floor", (), 0.009)) == 1


def test_the_page_takes_each_table_into_its_place():
    page = "a\n<!-- f1 -->\nold\n<!-- /f1 -->\nb\n<!-- f2 -->\n<!-- /f2 -->\n"
    made = filled(page, {"f1": "| one |", "f2": "| two |"})
    assert made == filled(made, {"f1": "| one |", "f2": "| two |"})
    assert "old" not in made
    assert made.index("| one |") < made.index("b\n") < made.index("| two |")


@pytest.mark.parametrize("tables", [{}, {"f1": "x", "f2": "y"}])
def test_a_table_without_a_place_and_a_place_without_a_table_are_named(tables):
    with pytest.raises(SystemExit, match=r"disagree on: f[12]"):
        filled("<!-- f1 -->\n<!-- /f1 -->\n", tables)


def test_arms_are_set_against_the_floors_median():
    runs = [run("floor", s) for s in (1.0, 2.0, 9.0)] + [run("local", 3.0)]
    assert over_floor(runs) == {"floor": 1.0, "local": 1.5}
    assert "| F1 | 1.50 | - |" in glance_table({"F1": over_floor(runs)})


def test_targets_are_met_or_named_as_missed():
    arms = {"floor": 1.0, "local": 1.1, "pfl": 2.0, "local-2": 0.5}
    runs = {"f5": [run(arm, seconds) for arm, seconds in arms.items()]}
    lines = targets_table(runs).splitlines()
    assert "| a round over the floor's | 1.05 | **F5 1.10, missed** |" in lines
    assert "| a round over pfl's | 1 | F5 0.55 |" in lines


def test_the_page_is_what_the_results_make():
    text = PAGE.read_text("utf-8")
    assert filled(text, all_tables()) == text
