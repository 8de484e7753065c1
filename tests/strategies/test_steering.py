"""What a client says of itself steers the model by the metrics that its method declares."""

from typing import Any

import pytest
from flwr.app import Message

from fedsuite.core.registry import METHODS
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import METRICS, NUM_EXAMPLES, STORED_STATE, client_record
from fedsuite.rounds.requests import steering
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import initial_arrays, server_parts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.strategies import load_strategy
from fedsuite.training.store import MemoryStore
from tests.effects.runs import base
from tests.helpers import TamperingGrid, run

SAMPLE = ("fedavg", "term", "fednova", "fedas", "feddisco", "fedakd")
CLAIM = client_record(0, METRICS)


class Played:
    """A run of a method, in which one metric of client 0 is another in each round."""

    def __init__(self, method: str, metric: str = "") -> None:
        given = base(method) | {"num-clients": 4, "num-rounds": 3}
        if method == "fedakd":
            given["fedakd-ablation"] = "correct-agg"
        experiment = Experiment.from_values(given)
        data = federated_data(experiment)
        model = network_model(experiment, data)
        parts = server_parts(experiment, data, model)
        self.strategy = build_strategy(experiment, parts)
        self.metrics: set[str] = set()
        self._changed = metric
        worker = Worker(experiment, MemoryStore())
        app = client_app_for(worker)
        grid = TamperingGrid(app, 4, self._tamper, rounds=range(1, 4))
        initial = to_record(initial_arrays(experiment, model, parts))
        trace = run(self.strategy, grid, 3, initial)
        self.steered = [_bits(trace.arrays[-1]), *map(_sent, grid.sent)]

    def _tamper(self, replies: list[Message]) -> list[Message]:
        for reply in replies:
            record = reply.content.metric_records.get(CLAIM)
            if record is None:
                continue
            self.metrics |= {name for name, v in record.items() if not isinstance(v, list)}
            if self._changed in record:
                record[self._changed] = 1.3 * float(record[self._changed]) + 0.1
        return replies


def _bits(arrays: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def _sent(message: Message) -> dict[str, dict[str, bytes]]:
    return {n: _bits(to_arrays(r)) for n, r in message.content.array_records.items()}


def steering_metrics(method: str) -> tuple[set[str], set[str]]:
    """Return the metrics that move what the server sends, and those that are declared."""
    honest = Played(method)
    declared = steering(honest.strategy)
    settings = {n.replace("-", "_") for n in honest.strategy._TOLD}
    moving = {
        name.replace("-", "_")
        for name in honest.metrics - {NUM_EXAMPLES, STORED_STATE}
        if name.replace("-", "_") not in settings
        and Played(method, name).steered != honest.steered
    }
    return moving, declared


@pytest.mark.parametrize(
    "method",
    [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.nightly) for n in METHODS],
)
def test_what_is_not_declared_steers_nothing(method: str) -> None:
    moving, declared = steering_metrics(method)
    assert moving <= declared
    if "max-share-ratio" in {key.name for key in load_strategy(METHODS[method]).KEYS}:
        assert moving, "claims that are bounded and steer nothing"
