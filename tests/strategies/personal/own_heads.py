"""Runs of FedPAC on digits, and its example's means and variances."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsuite.strategies.personal.fedpac import FedPAC
from tests.helpers import Tamper, Trace, digits_experiment
from tests.strategies.personal.watched import Watching, watched

VARIANCES = np.array([0.04, 0.02])
MEANS = np.array([[0.5, 0.0, 0.0, 0.5], [0.3, 0.0, 0.0, 0.6]])


KEYS: dict[str, Any] = {
    "model": "mlp",
    "hidden_width": 16,
    "partitioner": "shards",
    "num_rounds": 3,
}


def started(
    tamper: Tamper | None = None, rounds: Sequence[int] = (1,), **changes: Any
) -> tuple[Watching, FedPAC, Trace]:
    experiment = digits_experiment(method="fedpac", **{**KEYS, **changes})
    grid, _, strategy, trace = watched(experiment, tamper, rounds)
    assert isinstance(strategy, FedPAC)
    return grid, strategy, trace
