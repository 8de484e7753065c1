"""FedEBA+'s identities through whole runs, in this process and under Ray; resuming."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.engines.api import Engine
from fedsuite.messages.records import Arrays
from fedsuite.results.reader import Run

# 1438 training digits are 2 x 719: clients of equal size.
EXPERIMENT: Mapping[str, Value] = {
    "dataset": "digits",
    "num-clients": 2,
    "num-rounds": 3,
    "evaluate-every": 3,
    "batch-size": 32,
    "local-steps": 5,
    "learning-rate": 0.05,
    "learning-rate-decay": 1.0,
    "seed": 5,
    "report": False,
}
FEDEBA: Mapping[str, Value] = {"temperature": 0.01, "preset": "paper"}
METHODS = ("fedeba", "fedeba-plus", "prac-fedeba-plus")


def run(folder: Path, method: str, engine: Engine = "local", **changes: Value) -> Run:
    keys = {name.replace("_", "-"): value for name, value in changes.items()}
    place = {
        "output-dir": str(folder),
        "run-name": f"{method}-{len(list(folder.glob('*')))}",
    }
    experiment = {**EXPERIMENT, "method": method, **keys}
    result = fedsuite.run(experiment, engine=engine, overrides=place)
    assert result.manifest["status"] == "finished"
    return result


def model(result: Run) -> Arrays:
    return load((result.path / "model.safetensors").read_bytes())


def distance(left: Arrays, right: Arrays) -> float:
    assert set(left) == set(right)  # safetensors keeps no order
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)


def timeless(result: Run) -> list[dict[str, Any]]:
    lines = (result.path / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def check_identities(folder: Path, engine: Engine, thetas: tuple[float, ...]) -> None:
    """T10 (a), (b) and T12, within rounding."""
    fedeba = model(run(folder, "fedeba", engine, **FEDEBA))
    for theta in thetas:
        options = {"alpha": 0.0, "theta": theta, **FEDEBA}
        # With alpha 0 the probes are all that FedEBA+ adds: they have left no trace.
        assert distance(model(run(folder, "fedeba-plus", engine, **options)), fedeba) < 1e-6
        prac = run(folder, "prac-fedeba-plus", engine, **options)
        assert distance(model(prac), fedeba) < 1e-6
    fedavg = model(run(folder, "fedavg", engine))
    large = run(folder, "fedeba-plus", engine, alpha=0.0, preset="paper", temperature=1e9)
    assert distance(model(large), fedavg) < 1e-6
    assert distance(fedeba, fedavg) > 1e-4


def test_identities(tmp_path: Path) -> None:
    check_identities(tmp_path, "local", (0.0, 0.5, 90.0))


@pytest.mark.slow
def test_identities_under_ray(tmp_path: Path) -> None:
    check_identities(tmp_path, "ray", (0.0,))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_ray_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    shards: dict[str, Value] = {"partitioner": "shards", "num_clients": 4}
    local = run(tmp_path, method, **shards)
    ray = run(tmp_path, method, "ray", **shards)
    assert distance(model(local), model(ray)) == 0.0
    # Bytes are counted once a client on either engine.
    assert timeless(local) == timeless(ray)
    assert (local.path / "clients.jsonl").read_text() == (
        ray.path / "clients.jsonl"
    ).read_text()


@pytest.mark.parametrize("method", METHODS)
def test_resumed_in_the_middle_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    changes: dict[str, Value] = {
        "preset": "paper",
        "temperature_schedule": "linear",
        "temperature_decay": 0.5,
        "evaluate_every": 1,
        "learning_rate_decay": 0.9,
    }
    whole = run(tmp_path, method, num_rounds=6, **changes)
    half = run(tmp_path, method, num_rounds=3, **changes)
    resumed = fedsuite.resume(half.path, num_rounds=6)
    assert distance(model(resumed), model(whole)) == 0.0
    assert timeless(resumed) == timeless(whole)
    assert [row["temperature"] for row in timeless(whole)] == pytest.approx(
        [0.1 / (1 + 0.5 * t) for t in range(6)]
    )


def test_results_hold_what_the_method_did(tmp_path: Path) -> None:
    result = run(tmp_path, "fedeba-plus", num_rounds=1)
    row = timeless(result)[0]
    size = sum(array.nbytes for array in model(result).values())
    assert row["branch"] == 1.0
    assert row["bytes_paper"] == 2 * 2 * size
    # Model for the probe, model and fair gradient; gradient and trained model back.
    assert row["bytes_train"] == 5 * 2 * size
    assert 0 < row["angle"] < 90
    assert 1 <= row["effective_clients"] <= 2
    assert row["update_norm"] > 0
    lines = (result.path / "clients.jsonl").read_text().splitlines()
    clients = [json.loads(line) for line in lines]
    trained = [client for client in clients if client["phase"] == "train"]
    assert sum(client["weight"] for client in trained) == pytest.approx(1.0)
    assert sum(client["fair_weight"] for client in trained) == pytest.approx(1.0)
    assert all(client["loss_before"] > client["loss_after"] > 0 for client in trained)


@pytest.mark.parametrize("name", ["quickstart", "fashion_mnist_mlp"])
def test_experiments_of_the_paper_are_as_published(name: str) -> None:
    from fedsuite.experiment.experiment import Experiment

    path = Path(__file__).parents[2] / "simulations" / "fedeba" / f"{name}.toml"
    experiment = Experiment.load(path)
    best = {"temperature": 0.1, "alpha": 0.9, "theta": 0.0, "server-learning-rate": 1.0}
    assert {key: experiment[key] for key in best} == best
    assert (experiment["local-steps"], experiment["learning-rate-decay"]) == (10, 0.999)
    if name == "fashion_mnist_mlp":
        table = ("num-clients", "clients-per-round", "num-rounds", "batch-size")
        assert [experiment[key] for key in table] == [100, 10, 2000, 50]


def test_learning_rate_after_2000_rounds() -> None:
    """T16: 0.1352 of its start."""
    from fedsuite.training.loop import TrainingOptions

    rate = TrainingOptions(learning_rate=0.1, learning_rate_decay=0.999)
    assert rate.learning_rate_at(2001) == pytest.approx(0.1 * 0.1352, abs=1e-5)
