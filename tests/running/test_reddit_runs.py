"""Runs on words through the engine: the tokens' masks, method by method."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.data import reddit
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.running.worker import Worker
from fedsuite.training.store import MemoryStore
from tests.data import reddit_files
from tests.data.conftest import own_folders  # noqa: F401
from tests.helpers import Trace, digits_experiment, run_digits

NAMES = ("fedavg", "fedeba-plus", "fedwavg", "feddisco", "qffl", "propfair", "aaggff")


@pytest.fixture(autouse=True)
def small_vocabulary(tmp_path: Path) -> None:
    """Write three users' comments where the experiments below look for them."""
    reddit_files.write_users(tmp_path)


def experiment(root: Path, **changes: Value) -> Experiment:
    """Return a small experiment on words; ``changes`` are keys in snake case."""
    values: dict[str, Any] = {
        "dataset": "reddit",
        "data_dir": str(root),
        "partitioner": "natural-id",
        "natural_ids": "sample",
        "model": "lstm-reddit",
        "num_clients": 3,
        "num_rounds": 2,
        "batch_size": 2,
        "learning_rate": 7.5,
        "weight_decay": 1e-6,
    }
    return digits_experiment(**(values | changes))


def run(root: Path, **changes: Value) -> Trace:
    trace = run_digits(experiment(root, **changes))
    assert trace.error is None and len(trace.reports) == 2
    return trace


@pytest.mark.parametrize("method", NAMES)
def test_two_rounds_of(method: str, tmp_path: Path) -> None:
    trace = run(tmp_path, method=method)
    last = trace.arrays[-1]
    assert all(np.isfinite(array).all() for array in last.values())
    first = trace.arrays[0]
    assert any((first[name] != last[name]).any() for name in last)


def test_evaluation_is_that_of_the_targets_by_hand(tmp_path: Path) -> None:
    """Each client's accuracy again, one target after the other."""
    trace = run(tmp_path, learning_rate=1.0)
    data = federated_data(experiment(tmp_path))
    model = experiment_model(experiment(tmp_path), data)
    state = {name: torch.tensor(array) for name, array in trace.arrays[-1].items()}
    model.load_state_dict(state)
    model.eval()
    evaluated = trace.reports[-1].evaluate
    assert evaluated is not None and len(evaluated.rows) == 3
    for row in evaluated.rows:
        test = data.client(int(row["client"])).test
        with torch.no_grad():
            scores = model(test.features)
        counted = right = 0
        for words, targets in zip(scores, test.labels, strict=True):
            for score, target in zip(words, targets, strict=True):
                if target == -100:
                    continue
                counted += 1
                right += bool(score.argmax() == target and target != reddit.UNKNOWN)
        assert row["num_examples"] == counted
        assert row["accuracy"] == pytest.approx(right / counted)


def test_other_devices_get_the_label_that_is_never_right(tmp_path: Path) -> None:
    worker = Worker(experiment(tmp_path), MemoryStore())
    worker._device = torch.device("meta")  # what a machine without a GPU has
    moved = worker._on_device(federated_data(experiment(tmp_path)).client(0).train)
    assert moved.features.device.type == moved.labels.device.type == "meta"
    assert moved.never_right == reddit.UNKNOWN


def test_what_needs_a_class_per_row_is_refused(tmp_path: Path) -> None:
    worker = Worker(experiment(tmp_path, method="fedpac"), MemoryStore())
    with pytest.raises(ConfigError, match="fedpac: its prototypes need one class per row"):
        worker.client(None, 0)  # type: ignore[arg-type]  # the context plays no part
