"""What a run's summary says of its last evaluation, and of losses that explode."""

from pathlib import Path
from typing import Any

import pytest

from fedsuite.results.reader import Run, load_run
from fedsuite.results.summary import clients_without_test_rows, remarks_on
from tests.results.made_runs import make_run


def trained(*losses: float | None, task: str = "regression") -> Run:
    rounds = tuple(
        {"round": number, "train_loss": loss} for number, loss in enumerate(losses, 1)
    )
    return Run(Path("run"), {"task": task}, {}, rounds, None)


@pytest.mark.parametrize(
    ("losses", "exploded"),
    [
        # A thousand times the least so far, not the last; and never below a thousand.
        ((1.0, 900.0, 1500.0), "round 3 the training loss was 1500"),
        ((0.1, 900.0, None), ""),
        ((5.0, 4000.0, 6000.0), "round 3 the training loss was 6000"),
        ((2000.0, 3000.0), ""),
    ],
)
def test_a_loss_explodes_beside_the_least_before_it(losses: Any, exploded: str) -> None:
    remarks = remarks_on(trained(*losses))
    assert len(remarks) == bool(exploded)
    assert all(exploded in remark for remark in remarks)


def test_a_cross_entropy_explodes_by_itself() -> None:
    assert remarks_on(trained(99.0, task="classification")) == []
    (remark,) = remarks_on(trained(101.0, task="classification"))
    assert "round 1" in remark


def test_clients_without_test_rows_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", accuracies=(), status="running")
    counts = {1: (0, 0, 4), 2: (0, 5, 4)}
    for server_round, sizes in counts.items():
        evaluated = {"round": server_round, "phase": "evaluate"}
        folder.append(
            "clients",
            [{**evaluated, "client": k, "num_examples": n} for k, n in enumerate(sizes)],
        )
    folder.append("clients", [{"round": 3, "phase": "train", "client": 0}])
    folder.finish("finished")
    assert clients_without_test_rows(load_run(tmp_path / "run")) == (1, 3)
