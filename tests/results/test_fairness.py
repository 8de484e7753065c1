"""Collaborative fairness of run folders: scores apart, seeds together, numbers by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsuite.core.errors import RunError
from fedsuite.engines.api import run
from fedsuite.results.fairness import (
    LEGEND,
    UNDEFINED,
    FairnessRow,
    by_seed_table,
    fairness_rows,
    over_seeds_table,
    standalone_of,
    to_csv,
    to_markdown,
    write_fairness,
)
from fedsuite.results.reader import Run, load_run
from fedsuite.results.writer import RunFolder
from tests.results.made_runs import make_run
from tests.small_runs import SMALL

ALONE = (0.9, 0.85, 0.8, 0.7, 0.6)
TOGETHER = (0.95, 0.93, 0.92, 0.90, 0.89)

EXTRA = {
    "whole_test_accuracy": (0.5, 0.4, 0.3, 0.2, 0.1),
    "whole_test_examples": (1000,) * 5,
}


def made(
    path: Path,
    accuracies: Any = (TOGETHER,),
    *,
    seed: int = 0,
    method: str = "fedakd",
    extra: dict[str, Any] | None = None,
    trained: tuple[float, ...] = (),
) -> Run:
    folder = make_run(
        path,
        experiment={"method": method, "seed": seed},
        accuracies=accuracies,
        status="running",
    )
    last = len(accuracies)
    if extra:
        rewrite(folder, last, extra)
    rows = [
        {
            "round": last,
            "phase": "train",
            "client": k,
            "num_examples": 7,
            "trained_accuracy": v,
        }
        for k, v in enumerate(trained)
    ]
    folder.append("clients", rows)
    folder.finish("finished")
    return load_run(path)


def rewrite(folder: RunFolder, last: int, extra: dict[str, Any]) -> None:
    """Replace the rows of the last round by ones with more columns."""
    rows = load_run(folder.path).clients()
    folder.truncate_after(last - 1)
    more = [
        {**row, **{name: values[int(row["client"])] for name, values in extra.items()}}
        for row in rows
        if row["round"] == last
    ]
    folder.append("clients", more)


def rows_of(
    tmp_path: Path, *runs: Run, alone: Run | None = None
) -> tuple[FairnessRow, ...]:
    alone = alone or made(tmp_path / "alone", (ALONE,), method="standalone", extra=EXTRA)
    return fairness_rows(runs, {run.path: alone for run in runs})


def test_golden_numbers_of_one_run(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, made(tmp_path / "a"))
    (found,) = row.runs
    assert row.label == "fedakd" and row.score == "client's model, own test rows"
    assert found.cf == pytest.approx(97.39499, abs=1e-5)
    assert found.maximum == pytest.approx(95)
    assert found.mean == pytest.approx((95 + 93 + 92 + 90 + 89) / 5)
    assert found.incentive == 1.0
    assert found.interval == pytest.approx((65.15, 99.84), abs=0.01)


def test_mean_counts_each_client_once_whatever_its_test_rows(tmp_path: Path) -> None:
    many = {"num_examples": (1000, 10, 10, 10, 10)}
    (row,) = rows_of(tmp_path, made(tmp_path / "a", extra=many))
    assert row.runs[0].mean == pytest.approx(91.8)


def test_scores_are_rows_of_their_own_with_the_standalone_of_their_kind(
    tmp_path: Path,
) -> None:
    extra = {
        **EXTRA,
        "global_accuracy": TOGETHER[::-1],
        "global_whole_test_accuracy": (0.8,) * 5,
    }
    run = made(tmp_path / "a", extra=extra, trained=ALONE[::-1])
    found = {row.score: row.runs[0] for row in rows_of(tmp_path, run)}
    cfs = {score: one.cf for score, one in found.items()}
    assert cfs == {
        "client's model, own test rows": pytest.approx(97.39499, abs=1e-5),
        "client's model, whole test part": pytest.approx(100),
        "global model, own test rows": pytest.approx(-98.26458, abs=1e-5),
        "global model, whole test part": None,
        # Deviations .13, .08, .03, -.07, -.17 against themselves backwards.
        "trained model, own test rows": pytest.approx(-100 * 0.0545 / 0.058),
    }
    whole = found["client's model, whole test part"]
    assert whole.alone == EXTRA["whole_test_accuracy"]
    lines = {line[1]: line[3] for line in over_seeds_table(rows_of(tmp_path / "b", run))}
    assert lines["global model, whole test part"] == UNDEFINED


def test_a_score_that_standalone_lacks_is_left_out(tmp_path: Path) -> None:
    alone = made(tmp_path / "alone", (ALONE,), method="standalone")
    (row,) = rows_of(tmp_path, made(tmp_path / "a", extra=EXTRA), alone=alone)
    assert row.score == "client's model, own test rows"


def test_a_score_that_one_seed_lacks_is_left_out(tmp_path: Path) -> None:
    runs = made(tmp_path / "a", extra=EXTRA), made(tmp_path / "b", seed=1)
    (row,) = rows_of(tmp_path, *runs)
    assert row.score == "client's model, own test rows"
    assert [run.seed for run in row.runs] == [0, 1]


def test_spread_is_over_seeds_and_undefined_ones_are_counted(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / f"s{seed}", (values,), seed=seed)
        for seed, values in enumerate((TOGETHER, TOGETHER[::-1], (0.5,) * 5))
    ]
    (row,) = rows_of(tmp_path, *runs)
    line = over_seeds_table([row])[1]
    # Mean and deviation of 97.39499 and -98.26458; of 95, 95 and 50.
    assert line[2:5] == ["3", "-0.43 ± 138.35 (1 undefined)", "80.00 ± 25.98"]
    assert [cells[3] for cells in by_seed_table([row])[1:]] == [
        "97.39",
        "-98.26",
        UNDEFINED,
    ]
    assert [cells[2] for cells in by_seed_table([row])[1:]] == ["0", "1", "2"]


def test_evaluations_are_averaged_client_by_client(tmp_path: Path) -> None:
    alone = made(tmp_path / "alone", (ALONE,), method="standalone")
    run = made(tmp_path / "a", ((0.1, 0.2, 0.3, 0.4, 0.5), (0.3, 0.2, 0.5, 0.4, 0.7)))
    for evaluations, expected in ((1, 0.3), (2, 0.2), (9, 0.2)):
        (row,) = fairness_rows([run], {run.path: alone}, evaluations)
        assert row.runs[0].together[0] == pytest.approx(expected)
        assert row.runs[0].alone == ALONE


def test_clients_without_test_rows_are_left_out(tmp_path: Path) -> None:
    run = made(tmp_path / "a", extra={"num_examples": (20, 20, 20, 20, 0)})
    (row,) = rows_of(tmp_path, run)
    assert row.runs[0].alone == ALONE[:4]


def test_other_clients_are_refused(tmp_path: Path) -> None:
    alone = made(tmp_path / "alone", (ALONE[:4],), method="standalone")
    with pytest.raises(RunError, match="have other clients in accuracy"):
        rows_of(tmp_path, made(tmp_path / "a"), alone=alone)


def test_runs_without_accuracies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no accuracies per client"):
        rows_of(tmp_path, made(tmp_path / "a", accuracies=()))


def test_files_hold_tables_and_points(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, made(tmp_path / "a"))
    write_fairness(rows, tmp_path / "out")
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["fairness.csv", "fairness.md"]
    text = to_markdown(rows)
    assert "| fedakd | client's model, own test rows | 1 | 97.39 | 95.00 |" in text
    assert "| 97.39 | 65.2 to 99.8 | 95.00 |" in text
    assert to_csv(rows).splitlines()[1:3] == [
        'fedakd,"client\'s model, own test rows",0,0,0.9,0.95',
        'fedakd,"client\'s model, own test rows",0,1,0.85,0.93',
    ]
    assert text.endswith(f"\n{LEGEND}\n")


def test_points_carry_their_clients_names(tmp_path: Path) -> None:
    """Ten and eleven come before two where names are sorted, and one has no test rows."""
    accuracies = tuple(k / 20 for k in range(12))
    alone = made(tmp_path / "alone", (accuracies,), method="standalone")
    sizes = {"num_examples": (0, *(20,) * 11)}
    run = made(tmp_path / "a", (accuracies,), extra=sizes)
    lines = to_csv(rows_of(tmp_path, run, alone=alone)).splitlines()[1:]
    found = {int(cells[-3]): float(cells[-1]) for cells in (x.split(",") for x in lines)}
    assert found == {k: accuracies[k] for k in range(1, 12)}


def test_an_experiment_may_end_earlier(tmp_path: Path) -> None:
    run = made(tmp_path / "a", (ALONE, TOGETHER, ALONE[::-1]))
    other = made(tmp_path / "b", (TOGETHER,), method="fedavg")
    alone = made(tmp_path / "alone", (ALONE[::-1], ALONE), method="standalone")
    both = {run.path: alone, other.path: alone}
    first, second = fairness_rows([run, other], both, at_rounds={"fedakd": 2})
    assert (first.label, second.label) == ("fedakd at round 2", "fedavg")
    assert first.runs[0].together == TOGETHER
    assert first.runs[0].alone == ALONE
    (row, _) = fairness_rows([run, other], both, 2, at_rounds={"fedakd": 2})
    assert row.runs[0].together[0] == pytest.approx((ALONE[0] + TOGETHER[0]) / 2)
    with pytest.raises(RunError, match=r"no accuracy at round 4, the last is at 3"):
        fairness_rows([run, other], both, at_rounds={"fedakd": 4})
    with pytest.raises(RunError, match="no experiment 'fedak': there are fedakd; fedavg"):
        fairness_rows([run, other], both, at_rounds={"fedak": 2})


def small(folder: Path, name: str, **changes: Any) -> Run:
    values = {**SMALL, "output-dir": str(folder), "run-name": name}
    values |= {key.replace("_", "-"): value for key, value in changes.items()}
    return run(values)


def test_given_runs_are_matched_by_partition_and_seed(tmp_path: Path) -> None:
    runs = [small(tmp_path, f"avg{seed}", seed=seed) for seed in (0, 1)]
    given = [
        small(tmp_path, f"alone{seed}", seed=seed, method="standalone", clients_per_round=0)
        for seed in (1, 0)
    ]
    found = standalone_of(runs, given)
    assert {path.name: alone.path.name for path, alone in found.items()} == {
        "avg0": "alone0",
        "avg1": "alone1",
    }
    # Of two the first one given.
    again = replace(given[1], path=tmp_path / "again")
    assert standalone_of(runs[:1], [given[1], again])[runs[0].path] is given[1]
    with pytest.raises(RunError, match="no run of Standalone with its seed and partition"):
        standalone_of(runs, given[:1])
    # Neither the seed alone nor the partition alone makes it the one.
    given[0].manifest["data_fingerprint"] = runs[0].manifest["data_fingerprint"]
    with pytest.raises(RunError, match="avg0: no run of Standalone with its seed"):
        standalone_of(runs[:1], given[:1])
    given[1].manifest["data_fingerprint"] = "another"
    with pytest.raises(RunError, match="avg0: no run of Standalone with its seed"):
        standalone_of(runs[:1], given[1:])
    with pytest.raises(RunError, match="avg1 is no run of Standalone"):
        standalone_of(runs, [runs[1]])
