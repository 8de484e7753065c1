"""Runs on the hospitals' tables, by methods that do not know them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsuite.core.keys import Value
from fedsuite.experiment.experiment import Experiment
from tests.data import hospital_files
from tests.data.conftest import own_folders  # noqa: F401
from tests.helpers import digits_experiment, run_digits


def experiment(dataset: str, root: Path, **changes: Value) -> Experiment:
    """Return a small experiment by natural owners; ``changes`` are in snake case."""
    values: dict[str, Any] = {
        "dataset": dataset,
        "data_dir": str(root),
        "partitioner": "natural-id",
        "natural_ids": "largest",
        "num_clients": 3,
        "num_rounds": 4,
        "batch_size": 8,
        "learning_rate": 0.2,
    }
    return digits_experiment(**(values | changes))


def accuracies(asked: Experiment) -> list[float]:
    trace = run_digits(asked)
    assert trace.error is None
    for arrays in trace.arrays:
        assert all(np.isfinite(array).all() for array in arrays.values())
    evaluated = trace.reports[-1].evaluate
    assert evaluated is not None and not evaluated.rejections
    return evaluated.column("accuracy")


@pytest.mark.parametrize("method", ["fedavg", "standalone", "ditto", "scaffold"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_hearts(method: str, model: str, tmp_path: Path) -> None:
    """Age tells the ill: every method learns it."""
    hospital_files.write_hearts(tmp_path, (60, 45, 30, 36))
    found = accuracies(
        experiment("heart-disease", tmp_path, num_clients=4, method=method, model=model)
    )
    assert len(found) == 4 and np.mean(found) > 0.8


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_encounters(method: str, tmp_path: Path) -> None:
    """Earlier stays tell who comes back."""
    hospital_files.write_encounters(tmp_path)
    found = accuracies(experiment("diabetes130", tmp_path, method=method))
    assert len(found) == 3 and np.mean(found) > 0.8
