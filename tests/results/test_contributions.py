"""Contributions against accuracies alone: which number counts, and its correlation."""

from pathlib import Path
from typing import Any

import pytest

from fedsuite.core.errors import RunError
from fedsuite.results.contributions import contribution_figure, contributions
from fedsuite.results.groups import group_runs
from fedsuite.results.reader import Run, load_run
from tests.results.made_runs import make_run, written

ALONE = (0.9, 0.85, 0.8, 0.7, 0.6)


def made(path: Path, rounds: list[list[dict[str, Any]]], method: str, seed: int = 0) -> Run:
    """Make a run whose clients train with these columns, and reach ``ALONE``."""
    experiment = {"method": method, "seed": seed}
    folder = make_run(path, experiment=experiment, accuracies=(ALONE,), status="running")
    for server_round, rows in enumerate(rounds, start=1):
        base = {"round": server_round, "phase": "train"}
        folder.append("clients", [{**base, **row} for row in rows])
    folder.finish("finished")
    return load_run(path)


def trained(*values: float, column: str = "num_examples") -> list[dict[str, Any]]:
    return [
        {"client": k, "num_examples": 7, column: value} for k, value in enumerate(values)
    ]


@pytest.fixture
def alone(tmp_path: Path) -> Run:
    return made(tmp_path / "alone", [], "standalone")


def test_data_share_where_nothing_else_is_recorded(tmp_path: Path, alone: Run) -> None:
    run = made(tmp_path / "a", [trained(95, 93, 92, 90, 89)], "fedavg")
    found = contributions("fedavg", run, alone)
    assert found.kind == "data share"
    assert found.alone == ALONE
    assert found.shares == pytest.approx([n / 459 for n in (95, 93, 92, 90, 89)])
    assert found.correlation == pytest.approx(0.9739499)


@pytest.mark.parametrize("column", ["reputation", "weight"])
def test_what_the_method_records_comes_before_the_data_share(
    tmp_path: Path, alone: Run, column: str
) -> None:
    rounds = [trained(*range(5), column=column), trained(5, 4, 3, 2, 0, column=column)]
    found = contributions("x", made(tmp_path / "a", rounds, "x"), alone)
    assert found.kind == column
    assert found.shares == pytest.approx([5 / 14, 4 / 14, 3 / 14, 2 / 14, 0])


def test_a_client_that_sat_out_the_last_round_has_its_last_one(
    tmp_path: Path, alone: Run
) -> None:
    rounds = [trained(1, 1, 1, 1, 4), trained(2, 1, 1)]
    found = contributions("x", made(tmp_path / "a", rounds, "x"), alone)
    assert found.shares == pytest.approx([2 / 9, 1 / 9, 1 / 9, 1 / 9, 4 / 9])


def test_equal_and_no_contributions(tmp_path: Path, alone: Run) -> None:
    for name, value in (("a", 3.0), ("b", 0.0)):
        rounds = [trained(*5 * [value], column="weight")]
        found = contributions("x", made(tmp_path / name, rounds, "x"), alone)
        assert found.shares == (0.2,) * 5 if value else (0.0,) * 5
        assert found.correlation is None
    with pytest.raises(RunError, match="fewer than two clients in common"):
        contributions("x", made(tmp_path / "c", [trained(1)], "x"), alone)


def test_figure_has_a_panel_for_each_experiment(tmp_path: Path, alone: Run) -> None:
    runs = [
        made(tmp_path / "a", [trained(5, 4, 3, 2, 1)], "fedavg"),
        made(tmp_path / "b", [trained(1, 2, 3, 4, 5)], "fedavg", seed=1),
        made(tmp_path / "c", [trained(*5 * [1.0], column="weight")], "x"),
    ]
    groups = group_runs(runs)
    found = [contributions(g.label, r, alone) for g in groups for r in g.runs]
    left, right = contribution_figure(groups, found).axes
    # The second seed is the first backwards.
    assert left.get_title().replace("-", "") == "fedavg: r = 0.00"
    assert len(left.get_lines()) == 2
    assert list(left.get_lines()[0].get_xdata()) == pytest.approx([90, 85, 80, 70, 60])
    assert right.get_title() == "x: r = undefined"
    assert right.get_ylabel() == "weight (share of 1)"


def test_command(analyse: Any, tmp_path: Path, alone: Run) -> None:
    made(tmp_path / "a", [trained(95, 93, 92, 90, 89)], "fedavg")
    made(tmp_path / "b", [trained(*5 * [1.0], column="reputation")], "cgsv")
    given = ("--standalone", alone.path)
    code, _, err = analyse("contributions", tmp_path / "a", tmp_path / "b", *given)
    assert (code, err) == (0, "")
    first, second = written("contributions")
    assert (first["contribution"], second["contribution"]) == ("data share", "reputation")
    assert float(first["Pearson r"]) == pytest.approx(0.9739499)
    assert second["Pearson r"] == ""
    assert float(first["largest"]) == pytest.approx(95 / 459)
