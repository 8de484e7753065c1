"""The run of Standalone beside a run: what it takes over, and when it is made anew."""

from pathlib import Path
from typing import Any

import pytest

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines.api import run
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.reader import Run
from fedsuite.results.writer import RunFolder
from fedsuite.sweeps.standalone_runs import (
    find_or_make,
    standalone_experiment,
    standalone_runs,
)
from tests.small_runs import SMALL


def small(folder: Path, name: str, **changes: Any) -> Run:
    values = {**SMALL, "output-dir": str(folder), "run-name": name}
    values |= {key.replace("_", "-"): value for key, value in changes.items()}
    return run(values)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("standalone-*"))


def test_it_takes_over_data_model_training_and_seed() -> None:
    values = Experiment.from_values(
        {
            "method": "fedakd",
            "fedakd-ablation": "all-data",
            "partitioner": "power-law",
            "power-law-exponent": 0.5,
            "model": "mlp",
            "hidden-width": 7,
            "optimizer": "adam",
            "learning-rate": 0.02,
            "num-clients": 4,
            "clients-per-round": 2,
            "num-rounds": 6,
            "seed": 3,
            "server-momentum": 0.5,
            "score-whole-test": True,
            "checkpoint-every": 3,
        }
    ).values
    alone = standalone_experiment(values)
    assert alone["method"] == "standalone"
    kept = ("power-law-exponent", "hidden-width", "learning-rate", "optimizer", "seed")
    kept += ("num-rounds", "num-clients", "score-whole-test", "batch-size")
    assert {name: alone[name] for name in kept} == {name: values[name] for name in kept}
    assert alone["optimizer"] == "adam"
    # What is the federation's, not the client's, stays behind.
    assert alone["clients-per-round"] == 0
    assert alone["server-momentum"] == 0.0
    assert "fedakd-ablation" not in alone.values
    assert standalone_experiment(values, {"learning-rate": 0.5})["learning-rate"] == 0.5


def test_another_method_cannot_stand_in() -> None:
    values = Experiment.from_values({}).values
    with pytest.raises(ConfigError, match="'fedavg': the run is of Standalone"):
        standalone_experiment(values, {"method": "fedavg"})


def test_it_is_made_once_for_all_methods_of_a_partition_and_seed(tmp_path: Path) -> None:
    first = small(tmp_path, "avg", optimizer="adam", learning_rate=0.001)
    made = find_or_make(first)
    assert made.experiment["method"] == "standalone"
    assert names(tmp_path) == [made.path.name]
    before = (made.path / "rounds.jsonl").stat().st_mtime_ns
    second = small(tmp_path, "akd", method="fedakd", fedakd_order="code")
    assert find_or_make(second).path == made.path
    assert (made.path / "rounds.jsonl").stat().st_mtime_ns == before
    # All clients trained, though two a round did.
    assert made.rounds[-1]["clients_trained"] == 4


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"learning_rate": 0.01},
        {"partitioner": "shards"},
        {"model": "mlp"},
        {"num_rounds": 2},
        {"batch_size": 8},
    ],
)
def test_what_decides_it_makes_another(tmp_path: Path, change: dict[str, Any]) -> None:
    find_or_make(small(tmp_path, "one"))
    find_or_make(small(tmp_path, "two", **change))
    assert len(names(tmp_path)) == 2


def test_changes_make_another_and_standalone_is_its_own(tmp_path: Path) -> None:
    one = small(tmp_path, "one", method="standalone", clients_per_round=0)
    assert find_or_make(one).path == one.path
    other = find_or_make(one, {"learning-rate": 0.01})
    assert other.path != one.path
    assert other.experiment["learning-rate"] == 0.01


def test_an_interrupted_one_is_gone_on_with(tmp_path: Path) -> None:
    one = small(tmp_path, "one", num_rounds=2)
    made = find_or_make(one)
    expected = made.client_values("evaluate", "accuracy")
    RunFolder(made.path).update_manifest(status="running", finished=None)
    (made.path / "rounds.jsonl").write_text("")
    (made.path / "clients.jsonl").write_text("")
    for checkpoint in (made.path / "checkpoints").iterdir():
        checkpoint.unlink()
    again = find_or_make(one)
    assert again.path == made.path
    assert again.manifest["status"] == "finished"
    assert again.client_values("evaluate", "accuracy") == expected


def test_a_partition_that_cannot_be_made_again_is_an_error(tmp_path: Path) -> None:
    one = small(tmp_path, "one")
    one.manifest["data_fingerprint"] = "another"
    with pytest.raises(RunError, match="partition cannot be made again"):
        find_or_make(one)


def test_given_runs_are_matched_by_partition_and_seed(tmp_path: Path) -> None:
    runs = [small(tmp_path, f"avg{seed}", seed=seed) for seed in (0, 1)]
    given = [
        small(tmp_path, f"alone{seed}", seed=seed, method="standalone", clients_per_round=0)
        for seed in (1, 0)
    ]
    found = standalone_runs(runs, given)
    assert {path.name: alone.path.name for path, alone in found.items()} == {
        "avg0": "alone0",
        "avg1": "alone1",
    }
    assert names(tmp_path) == []
    with pytest.raises(RunError, match="no run of Standalone with its seed and partition"):
        standalone_runs(runs, given[:1])
    # Neither the seed alone nor the partition alone makes it the one.
    given[0].manifest["data_fingerprint"] = runs[0].manifest["data_fingerprint"]
    with pytest.raises(RunError, match="avg0: no run of Standalone with its seed"):
        standalone_runs(runs[:1], given[:1])
    given[1].manifest["data_fingerprint"] = "another"
    with pytest.raises(RunError, match="avg0: no run of Standalone with its seed"):
        standalone_runs(runs[:1], given[1:])
    with pytest.raises(RunError, match="avg1 is no run of Standalone"):
        standalone_runs(runs, [runs[1]])
