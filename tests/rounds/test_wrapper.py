"""What a wrapper passes on to the strategy inside."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsuite.messages.records import Arrays, ConfigValue
from fedsuite.rounds.wrapper import StrategyWrapper
from fedsuite.strategies.averaging.fedavg import FedAvg
from tests.helpers import MEAN_OF_ALL, TamperingGrid, matrix_app, run


class Inner(FedAvg):
    """Counts what it is asked, and remembers it."""

    def __init__(self) -> None:
        super().__init__(min_available_nodes=1)
        self.calls: list[str] = []
        self.restored: Any = None

    def finish_round(self) -> None:
        self.calls.append("finish_round")

    def summary(self) -> None:
        self.calls.append("summary")

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        return {"a": np.ones(1)}, {"rate": 0.5}

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self.restored = (list(arrays), dict(scalars))


class Outer(StrategyWrapper):
    """Remembers something under a name that the strategy inside uses too."""

    def __init__(self, strategy: FedAvg) -> None:
        super().__init__(strategy)
        self.own: dict[str, ConfigValue] = {"rate": 7}

    def own_state(self) -> dict[str, ConfigValue]:
        return self.own

    def restore_own(self, scalars: Mapping[str, ConfigValue]) -> None:
        self.own = dict(scalars)


def test_runs_as_the_strategy_inside_does() -> None:
    inner = Inner()
    trace = run(StrategyWrapper(inner), TamperingGrid(matrix_app(), 3), 2)
    assert trace.weights == [MEAN_OF_ALL] * 2
    assert inner.calls == ["summary", "finish_round", "finish_round"]
    assert inner.num_rounds == 2
    assert all(report.evaluate is not None for report in trace.reports)


def test_start_sets_the_deadline_of_exchanges_inside_rounds() -> None:
    from fedsuite.workarounds.identity import flower_identity
    from tests.helpers import zeros

    inner = Inner()
    with flower_identity():
        grid = TamperingGrid(matrix_app(), 3)
        StrategyWrapper(inner).start(grid, zeros(), 1, timeout=12.0)
    assert inner.exchange_timeout == 12.0


def test_states_do_not_mix() -> None:
    arrays, scalars = Outer(Inner()).state()
    assert scalars == {"rate": 7, "strategy/rate": 0.5}
    inner = Inner()
    outer = Outer(inner)
    outer.restore(arrays, {**scalars, "rate": 8})
    assert inner.restored == (["a"], {"rate": 0.5})
    assert outer.own == {"rate": 8}


def test_versions_are_those_of_the_strategy_inside() -> None:
    inner = Inner()
    outer = StrategyWrapper(inner)
    outer.client_versions = {3: "1.1"}
    outer.kept_versions = {3: "0.1"}
    assert (inner.client_versions, inner.kept_versions) == ({3: "1.1"}, {3: "0.1"})
    assert outer.client_versions is inner.client_versions
    assert outer.judge is inner.judge and outer.extras is inner.extras
