"""Suspects: who stands where in the table, and what it says of them."""

from pathlib import Path
from typing import Any

import fedsuite
from fedsuite.results.reader import load_run
from fedsuite.results.suspects import NOTE, suspects
from fedsuite.training.attack_plan import AttackPlan
from tests.helpers import digits_experiment
from tests.results.made_runs import make_run, written


def told(path: Path, **experiment: Any) -> None:
    """Write two rounds of three clients; client 2 is refused in the second."""
    folder = make_run(path, status="running", experiment=experiment)
    for server_round, ratios in ((1, (1.0, 2.0, 9.0)), (2, (1.0, 4.0))):
        rows = [
            {
                **{"round": server_round, "phase": "train", "client": k},
                **{"num_examples": 5 + k, "update_norm": 1.0, "norm_ratio": ratio},
            }
            for k, ratio in enumerate(ratios)
        ]
        rows[1]["claimed_examples"] = 900.0 * server_round
        folder.append("clients", rows)
    late = {"kind": "rejected-reply", "phase": "train"}
    events = [
        {"round": 1, "kind": "bounded-reply", "phase": "train", "client": 1, "reason": ""},
        {"round": 2, "kind": "rejected-reply", "phase": "train", "client": 2, "reason": ""},
        {"round": 2, "kind": "rejected-reply", "phase": "train", "client": None},
        {"round": 3, **late, "client": 0, "cause": "late", "reason": ""},
    ]
    folder.append("events", events)
    folder.finish("finished")


def test_table(analyse: Any, tmp_path: Path) -> None:
    told(tmp_path / "run")
    code, out, err = analyse("suspects", tmp_path / "run")
    assert (code, err) == (0, "")
    # A tie of bounded and refused: client 2's length was 9 medians.
    rows = written("suspects")
    assert [row["client"] for row in rows] == ["2", "1", "0"]
    refused, bounded, fine = rows
    assert (refused["rounds"], refused["refused %"], refused["bounded %"]) == (
        *("2", "50.0"),
        "0.0",
    )
    assert (bounded["refused %"], bounded["bounded %"]) == ("0.0", "50.0")
    assert (bounded["length, median"], bounded["length, largest"]) == ("3.0", "4.0")
    # Its reply of round 3 was late.
    assert (fine["rounds"], fine["refused %"]) == ("2", "0.0")
    assert (fine["weight, mean"], fine["examples, largest"]) == ("", "5.0")
    assert (fine["claim cut, largest"], bounded["claim cut, largest"]) == ("", "1800.0")
    assert NOTE in (tmp_path / "analysis/suspects.md").read_text()
    assert "is not dishonest" in out


def test_a_run_without_lengths_is_refused_in_one_line(analyse: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    code, _, err = analyse("suspects", tmp_path / "run")
    assert code == 1
    assert "no client's row has update_norm" in err
    assert err.count("\n") == 1


def test_a_liar_of_a_run_stands_first(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"num_clients": 5, "num_rounds": 2, "workers": 1}
    keys |= {"run_name": "run", "output_dir": str(tmp_path)}
    experiment = digits_experiment(attack="scale", **keys)
    fedsuite.run(dict(experiment.values))
    (liar,) = AttackPlan(attack="scale", num_clients=5).liars()
    first = suspects(load_run(tmp_path / "run"))[0]
    assert first.client == liar
    assert min(first.lengths) > 3
