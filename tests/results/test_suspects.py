"""Suspects: who stands where in the table, and what it says of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedsuite
from fedsuite.results.layout import LEFT_OUT
from fedsuite.results.reader import load_run
from fedsuite.results.suspects import (
    FAR_SPREADS,
    NOTE,
    STANDS_OUT,
    USUAL_SPREADS,
    far,
    odd_by,
    suspects,
)
from fedsuite.training.attack_plan import AttackPlan
from tests.helpers import digits_experiment
from tests.results.lying_runs import FORMS, ranked
from tests.results.made_runs import make_run, written


def told(path: Path, **experiment: Any) -> None:
    """Write two rounds of three clients; client 2 is refused in the second."""
    folder = make_run(path, status="running", experiment=experiment)
    for server_round, ratios in ((1, (1.0, 1.2, 9.0)), (2, (1.0, 1.2))):
        rows = [
            {
                **{"round": server_round, "phase": "train", "client": k},
                **{"num_examples": 5 + k, "update_norm": ratio, "norm_ratio": ratio},
            }
            for k, ratio in enumerate(ratios)
        ]
        rows[1]["claimed_examples"] = 900.0
        folder.append("clients", rows)
    late = {"kind": "rejected-reply", "phase": "train"}
    events = [
        {"round": 1, "kind": "bounded-reply", "phase": "train", "client": 1, "reason": ""},
        {"round": 2, "kind": "rejected-reply", "phase": "train", "client": 2, "reason": ""},
        {"round": 2, "kind": "rejected-reply", "phase": "train", "client": None},
        *(
            {"round": 3, **late, "client": k, "cause": "late", "reason": ""}
            for k in range(3)
        ),
    ]
    folder.append("events", events)
    folder.finish("finished")


def test_table(analyse: Any, tmp_path: Path) -> None:
    told(tmp_path / "run")
    code, out, err = analyse("suspects", tmp_path / "run")
    assert (code, err) == (0, "")
    # Client 2 was refused once, and 9 medians long before.
    rows = written("suspects")
    assert [row["client"] for row in rows] == ["2", "1", "0"]
    refused, bounded, fine = rows
    assert (refused["rounds"], refused["refused %"], refused["bounded %"]) == (
        *("3", str(100 * (1 / 3))),
        "0.0",
    )
    assert (bounded["refused %"], bounded["bounded %"]) == ("0.0", str(100 * (1 / 3)))
    assert (bounded["length, median"], bounded["length, largest"]) == ("1.2", "1.2")
    # All replies of round 3 were late.
    assert (fine["rounds"], fine["refused %"], fine["absent %"]) == ("3", "0.0", "0.0")
    assert (refused["because"], fine["because"]) == ("refused in 1, long in 1", "")
    assert (fine["weight, mean"], fine["examples, largest"]) == ("", "5.0")
    assert (fine["claim cut, largest"], bounded["claim cut, largest"]) == ("", "900.0")
    assert NOTE in (tmp_path / "analysis/suspects.md").read_text()
    assert "is not dishonest" in out
    files = " ".join(out.rpartition("table: ")[2].split())
    assert files == "analysis/suspects.csv, analysis/suspects.md"


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


CASES = [*zip(FORMS, (0, 3, 2, 3, 4, 5), strict=True), ("x -20", 4)]


@pytest.mark.parametrize(("form", "seed"), CASES)
def test_who_lies_is_first_and_the_honest_never(
    form: str, seed: int, tmp_path: Path
) -> None:
    method = "term" if form == "loss 9" else "fedavg"
    clients, liars = ranked(tmp_path / "run", form, seed, method=method)
    first = clients[0]
    if form == "sign flip" and not first.because:
        return  # as long as the others': it may go unseen
    assert first.client in liars
    assert first.odd >= STANDS_OUT


@pytest.mark.parametrize("seed", range(3))
def test_where_nobody_lies_nobody_stands_out(seed: int, tmp_path: Path) -> None:
    clients, _ = ranked(tmp_path / "run", "honest", seed)
    assert [client.because for client in clients] == [""] * 5


LIAR = 3


def of_five(path: Path, change: Callable[[int, dict[str, Any]], Any], **event: Any) -> str:
    """Return the grounds against a client of five whose rows are changed.

    The others have none. By the partition client k has 10 (k + 1) rows.
    """
    folder = make_run(path, status="running")
    folder.write_json("partition.json", {"train": [[10 * (k + 1)] for k in range(5)]})
    for server_round in range(1, 7):
        rows = [
            {
                **{"round": server_round, "phase": "train", "client": k, "num_steps": 10.0},
                **{"num_examples": 10 * (k + 1), "loss": (1 + 0.02 * k) / server_round},
                **{"update_norm": 3 + 0.1 * k, "norm_ratio": 1.0},
            }
            for k in range(5)
        ]
        change(server_round, rows[LIAR])
        folder.append("clients", rows)
        if event:
            of_liar = {"round": server_round, "phase": "train", "client": LIAR}
            folder.append("events", [{**of_liar, "reason": "", **event}])
    folder.finish("finished")
    clients = suspects(load_run(path))
    assert [one.because for one in clients[1:]] == [""] * 4
    assert clients[0].client == LIAR or not clients[0].because
    return clients[0].because


def times(name: str, factor: float) -> Callable[[int, dict[str, Any]], Any]:
    return lambda _, row: row.update({name: factor * row[name]})


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (times("update_norm", 2.5), "long in 6"),
        (times("update_norm", 0.4), "short in 6"),
        (times("update_norm", 1.2), ""),
        (times("loss", 1e-9), "loss in 6"),
        (times("loss", 20.0), "loss in 6"),
        (times("loss", 0.8), ""),
        (times("num_steps", 3.0), "num_steps in 6"),
        (times("num_examples", 0.5), "size in 6"),
        (times("num_examples", 0.9), ""),
        (lambda r, row: row.update(num_examples=[40, 2][r % 2]), "size in 3"),
        (lambda r, row: r > 3 or row.pop("loss"), "lacking in 3"),
    ],
)
def test_what_stands_out(change: Any, because: str, tmp_path: Path) -> None:
    assert of_five(tmp_path / "run", change) == because


@pytest.mark.parametrize(
    ("event", "because"),
    [
        ({"kind": "rejected-reply", "cause": "duplicate"}, "repeated in 6"),
        ({"kind": "bounded-reply", "cause": "bounded"}, "bounded in 6"),
        ({"kind": LEFT_OUT, "cause": "wrong-metrics"}, "impossible in 6"),
        ({"kind": LEFT_OUT, "cause": "not-finite"}, ""),
    ],
)
def test_events_that_stand_out(event: Any, because: str, tmp_path: Path) -> None:
    """A score that is no number may be honest, as of one class, and so is its absence."""

    def without(_: int, row: dict[str, Any]) -> None:
        if event["kind"] == LEFT_OUT:
            row["loss"] = None

    assert of_five(tmp_path / "run", without, **event) == because


def test_replies_that_come_alone_are_compared_with_those_around(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", status="running")
    for server_round in range(1, 16):
        row = {"round": server_round, "phase": "train", "client": server_round % 5}
        norm = 40.0 if server_round % 5 == LIAR else 1 + 0.01 * server_round
        folder.append("clients", [{**row, "num_examples": 5, "update_norm": norm}])
    folder.finish("finished")
    clients = suspects(load_run(tmp_path / "run"))
    assert [(one.client, one.because) for one in clients[:2]] == [
        (LIAR, "long in 3"),
        (0, ""),
    ]


def test_a_round_in_which_most_fail_is_a_ground_against_nobody(tmp_path: Path) -> None:
    """Honest clients fail by what the model did to them: here three of four."""
    folder = make_run(tmp_path / "run", status="running")
    row = {"phase": "train", "num_examples": 5, "update_norm": 1.0}
    for server_round in (1, 2):
        asked = range(4) if server_round == 1 else (3,)
        ratios = {k: 20.0 if k == 3 else 1.0 for k in asked}
        folder.append(
            "clients",
            [
                {**row, "round": server_round, "client": k, "update_norm": ratio}
                for k, ratio in ratios.items()
            ],
        )
    event = {"round": 2, "kind": "rejected-reply", "cause": "not-finite", "phase": "train"}
    folder.append("events", [{**event, "client": k, "reason": ""} for k in range(3)])
    folder.finish("finished")
    clients = suspects(load_run(tmp_path / "run"))
    assert [(one.client, one.because) for one in clients[:2]] == [(3, "long in 2"), (0, "")]


def test_how_odd_a_distance_is() -> None:
    """In spreads of at least a tenth."""
    ends = USUAL_SPREADS, (USUAL_SPREADS + FAR_SPREADS) / 2, FAR_SPREADS
    for spread in (0.1, 0.3):
        found = [odd_by(-spread * distance, spread) for distance in (*ends, 1e9)]
        assert found == pytest.approx([0, 0.5, 1, 1])
    assert odd_by(0.4, 0.0) == 0.0 < odd_by(0.1 * FAR_SPREADS, 0.0)


def test_how_far_is_far() -> None:
    assert [far(ratio) for ratio in (0.0, 1.0, 1.5, 10.0, 1e9)] == [0, 0, 0, 1, 1]
    assert far(15**0.5) == pytest.approx(0.5)
