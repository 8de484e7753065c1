"""What a layer sees between a strategy and its clients."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, EVALUATE, TRAIN
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.averaging.fedavg import FedAvg
from tests.helpers import MEAN_OF_ALL, TamperingGrid, matrix_app, run


class Doubling(ExchangeLayer):
    """Marks what leaves, and doubles what comes back."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def ask(self, exchange: Exchange) -> Exchange:
        self.seen.append(exchange.message_type)
        return replace(exchange, config={**exchange.config, "mark": 7})

    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        arrays = {name: 2 * array for name, array in reply.arrays[ARRAYS].items()}
        return (replace(reply, arrays={ARRAYS: arrays}),)


def test_layer_sees_all_that_passes() -> None:
    layer = Doubling()
    strategy = FedAvg(layer=layer)
    grid = TamperingGrid(matrix_app(), 3)
    trace = run(strategy, grid)
    assert layer.seen == [TRAIN, EVALUATE]
    assert {message.content["config"]["mark"] for message in grid.sent} == {7}
    assert trace.weights == [2 * MEAN_OF_ALL]


class Fussy(FedAvg):
    FIXED: ClassVar[Mapping[str, Value]] = {"momentum": 0.0}


def test_fixed_keys_are_refused_at_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    Experiment.from_values({})  # The known keys are looked up once: before the patch.
    monkeypatch.setattr("fedsuite.strategies.load_class", lambda side, path: Fussy)
    Experiment.from_values({"momentum": 0.0})
    with pytest.raises(ConfigError, match=r"momentum = 0.9 cannot go with method fedavg"):
        Experiment.from_values({"momentum": 0.9})
