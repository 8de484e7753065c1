"""The report: one file that needs no network, of any state that a run can be in."""

import json
import re
from dataclasses import asdict

import numpy as np
import plotly.graph_objects
import pytest

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.data import ClientShift
from fedsuite.results.reader import load_run
from fedsuite.results.report import report_html, write_report
from fedsuite.results.report.figures import Figure, holding_figures, shared_columns
from fedsuite.results.report.run_tables import reasons_table
from fedsuite.results.report.sections import TITLES
from tests.results.made_runs import make_run
from tests.small_runs import SMALL

CURVE = ((0.2, 0.4), (0.5, 0.7), (0.6, 0.9))


def page_of(*folders):
    return report_html([load_run(folder) for folder in folders])


def test_nothing_is_fetched(tmp_path):
    """Addresses stand in Plotly's packed script alone."""
    make_run(tmp_path / "one", accuracies=CURVE)
    page = page_of(tmp_path / "one")
    assert not re.findall(r"""(?:src|href)=["']?(?!#)[^"'> ]*//""", page)
    assert "default-src 'none'" in page
    assert len(page) < 4_000_000


def test_what_a_run_says_is_text_and_no_html(tmp_path):
    make_run(tmp_path / "one", experiment={"run-name": "<script>alert(1)</script>"})
    assert "<script>alert(1)" not in page_of(tmp_path / "one")


@pytest.mark.parametrize("status", ["finished", "running", "stopped"])
def test_runs_in_any_state_are_shown(tmp_path, status):
    make_run(tmp_path / "one", accuracies=CURVE, status=status)
    page = page_of(tmp_path / "one")
    assert status in page
    # By hand: (0.6 + 0.9) / 2.
    assert "75.0" in page


def test_a_run_without_a_round_has_a_page(tmp_path):
    make_run(tmp_path / "one", accuracies=(), status="running")
    assert TITLES["what"] in page_of(tmp_path / "one")


def test_several_runs_are_compared_pair_by_pair(tmp_path):
    for seed, gain in ((0, 0.0), (1, 0.02)):
        make_run(tmp_path / f"a{seed}", accuracies=CURVE, experiment={"seed": seed})
        better = tuple(tuple(v + 0.05 + gain for v in row) for row in CURVE)
        make_run(
            tmp_path / f"b{seed}",
            accuracies=better,
            experiment={"seed": seed, "method": "fedprox"},
        )
    page = page_of(*(tmp_path / name for name in ("a0", "a1", "b0", "b1")))
    assert TITLES["compare"] in page
    # By hand: gains of 5 and 7 points, so 6 on average.
    assert "+6.00" in page


def test_very_many_reasons_of_one_cause_are_one(tmp_path):
    folder = make_run(tmp_path / "one", accuracies=CURVE)
    shared = {"kind": "bounded-reply", "cause": "bounded", "phase": "train"}
    events = [
        {**shared, "round": r, "client": r, "reason": f"length {r}.5e+3 is too long"}
        for r in range(1, 7)
    ]
    lost = {"kind": "rejected-reply", "phase": "train", "round": 2, "client": 0}
    events.append({**lost, "cause": "client-failed", "reason": "no disk"})
    events += [{**lost, "cause": "client-failed", "reason": "no rows"}] * 2
    folder.append("events", events)
    table = reasons_table([load_run(tmp_path / "one")])
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows == [
        [
            *("6", "used, shortened", "train", "bounded"),
            "length 1.5e+3 is too long (and 5 other reasons)",
            *("1 (1), 2 (1), 3 (1), 4 (1), 5 (1) and 1 more", "1", "6"),
        ],
        ["2", "not used", "train", "client-failed", "no rows", "0 (2)", "2", "2"],
        ["1", "not used", "train", "client-failed", "no disk", "0 (1)", "2", "2"],
    ]


def test_rounds_have_whole_numbers(tmp_path):
    """Plotly would write 1.5 at the axis of a few rounds."""
    few, many = (
        Figure("time", "", [{"x": [1, last], "y": [0, 0]}], "round", "s")
        for last in (5, 500)
    )
    assert few.as_dict()["layout"]["xaxis"]["dtick"] == 1
    assert "dtick" not in many.as_dict()["layout"]["xaxis"]


def test_neighbours_share_a_column_that_is_their_mean():
    heights = np.array([[1, 3, 5, 7, 9], [0, 2, 4, 4, 8]])
    firsts, means, each = shared_columns(heights, most=3)
    assert (firsts, each) == ([0, 2, 4], 2)
    assert means.tolist() == [[2, 6, 9], [1, 4, 8]]
    firsts, means, each = shared_columns(heights, most=5)
    assert (firsts, each, means.tolist()) == ([0, 1, 2, 3, 4], 1, heights.tolist())


def test_who_holds_what_has_bars_of_classes_and_of_shifts():
    counts = {"train": np.array([[1, 2, 3], [4, 0, 6]]), "test": None}
    shifts = [
        ClientShift(k + 0.5, None, 1.0, 9.0 * k, 7 * k, 0.1 * k, 3.0) for k in range(2)
    ]
    rows, shift = holding_figures(counts, shifts)
    assert [trace["y"] for trace in rows.data] == [[1, 4], [2, 0], [3, 6]]
    assert [trace["x"] for trace in rows.data] == [[0, 1]] * 3
    assert len({trace["marker"]["color"] for trace in rows.data}) == 3
    assert [trace["y"] for trace in shift.data] == [[0.5, 1.5]]
    # Plotly's own library refuses a property that the page's script would pass over.
    for figure in (rows, shift):
        plotly.graph_objects.Figure(figure.data, figure.as_dict()["layout"])
    assert holding_figures({"train": None, "test": None}) == []


def test_the_shift_of_a_run_is_on_its_page(tmp_path):
    folder = make_run(tmp_path / "one", accuracies=CURVE)
    shift = asdict(ClientShift(0.5, None, 1.0, 9.0, 7, 0.1, 3.0))
    folder.write_json("partition.json", {"train": [[3, 4]], "shift": [shift]})
    page = page_of(tmp_path / "one")
    assert "<figcaption>Training rows</figcaption>" in page
    assert "<figcaption>Covariate shift</figcaption>" in page


def test_a_damaged_run_is_named(tmp_path):
    folder = make_run(tmp_path / "one", accuracies=CURVE)
    (folder.path / "rounds.jsonl").write_text('{"round": 1, "accuracy_mean": "x"}\n')
    with pytest.raises(RunError, match="one"):
        write_report([folder.path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_run_writes_its_report_and_repeats_it_to_the_byte(tmp_path):
    values = {**SMALL, "output-dir": str(tmp_path), "run-name": "one", "report": True}
    run = fedsuite.run(values)
    written = (run.path / "report.html").read_text()
    assert all(f'id="{name}"' in written for name in ("what", "curves", "clients", "costs"))
    write_report([run.path], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == written
    assert json.loads((run.path / "manifest.json").read_text())["machine"]["cores"]


def test_the_key_switches_it_off(tmp_path):
    values = {**SMALL, "output-dir": str(tmp_path), "run-name": "one", "report": False}
    assert not (fedsuite.run(values).path / "report.html").exists()
