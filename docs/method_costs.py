"""What a method sends and computes, measured on one small run of the local engine."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from tempfile import TemporaryDirectory
from unittest.mock import patch

from flwr.app import Message, RecordDict
from torch.utils.flop_counter import FlopCounterMode

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.engines import local
from fedsuite.engines.local import LocalGrid

ROUNDS = 2
"""Rounds of the run. The last one is measured, since a first round may send more."""

SETTINGS: Mapping[str, Value] = {
    "dataset": "digits",
    "model": "mlp",
    "num-clients": 4,
    "num-rounds": ROUNDS,
    "local-epochs": 1,
    "batch-size": 32,
    "public-size": 200,
    "server-validation-fraction": 0.1,
    "evaluate-every": ROUNDS + 1,
    "checkpoint-every": 0,
    "report": False,
}


@dataclass
class Sent:
    """Messages of one kind and one direction, of one client in one round.

    Parameters
    ----------
    messages
        How many there were.
    arrays
        Bytes by the record's name.
    numbers
        Names of metrics.
    """

    messages: int = 0
    arrays: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    numbers: set[str] = field(default_factory=set)

    def add(self, content: RecordDict) -> None:
        """Count one message."""
        self.messages += 1
        for name, arrays in content.array_records.items():
            size = sum(len(array.data) for array in arrays.values())
            self.arrays[name.rpartition(".")[2]] += size
        for metrics in content.metric_records.values():
            self.numbers |= set(metrics)


@dataclass
class Cost:
    """What one client costs in one round.

    Parameters
    ----------
    down, up
        What came to the client and what left it, by message type.
    training, evaluation, server
        Multiplications and additions of matrix products and convolutions, forward and
        backward: of the client's training, of its evaluation, and of the server.
    """

    down: dict[str, Sent] = field(default_factory=lambda: defaultdict(Sent))
    up: dict[str, Sent] = field(default_factory=lambda: defaultdict(Sent))
    training: int = 0
    evaluation: int = 0
    server: int = 0


class _Recorder:
    """Stands in for the local engine's answer, and writes down the last round."""

    def __init__(self) -> None:
        self.cost = Cost()
        self.flops = FlopCounterMode(display=False)
        self._answer = LocalGrid._answer_here
        self._before = 0

    def __call__(self, grid: LocalGrid, message: Message) -> Message:
        asked = self.flops.get_total_flops()
        reply = self._answer(grid, message)
        answered = self.flops.get_total_flops()
        if _server_round(message) == ROUNDS:
            self.cost.server += asked - self._before
            if message.metadata.dst_node_id == next(iter(grid.get_node_ids())):
                kind = message.metadata.message_type
                if kind == "evaluate":
                    self.cost.evaluation += answered - asked
                else:
                    self.cost.training += answered - asked
                self.cost.down[kind].add(message.content)
                self.cost.up[kind].add(reply.content)
        self._before = answered
        return reply


def _server_round(message: Message) -> int:
    rounds = [
        int(config["server-round"])  # type: ignore[arg-type]
        for config in message.content.config_records.values()
        if "server-round" in config
    ]
    return max(rounds, default=0)


@cache
def _measured(values: tuple[tuple[str, Value], ...]) -> Cost:
    recorder = _Recorder()
    with TemporaryDirectory() as folder, recorder.flops:
        place = {"output-dir": folder, "run-name": "run"}
        answer = patch.object(LocalGrid, "_answer_here", lambda *given: recorder(*given))
        alone = patch.object(local, "CLIENTS_PER_MESSAGE", 1)
        with answer, alone, redirect_stdout(StringIO()):
            fedsuite.run({**SETTINGS, **dict(values), **place}, engine="local")
        recorder.cost.server += recorder.flops.get_total_flops() - recorder._before
    return recorder.cost


def measured(values: Mapping[str, Value]) -> Cost:
    """Run an experiment of two rounds, and return what client 0 cost in the second.

    Parameters
    ----------
    values
        Keys that name the method, over :data:`SETTINGS`.
    """
    return _measured(tuple(values.items()))
