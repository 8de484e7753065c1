"""Keywords set after construction: those of each round's draw hold, others are refused."""

from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedsuite.core.errors import ConfigError
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from tests.helpers import TamperingGrid, matrix_app, run


class Keeping(FedAvg):
    """Has an attribute of its own, which it annotates."""

    best: float = 0.0


def test_an_attribute_that_a_subclass_annotates_is_its_own() -> None:
    strategy = Keeping()
    strategy.best = 0.5
    assert strategy.best == 0.5 and Keeping(best=0.1).best == 0.1


class Halving(FedAvg):
    """Sets keywords where Flower's users do: before it asks for the messages."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        if server_round == 2:
            self.fraction_train, self.min_train_nodes = 0.34, 1
        return super().configure_train(server_round, arrays, config, grid)


class Repeating(FedAvg):
    """Sets what it has just given on, as subclasses of Flower's FedAvg do."""

    def __init__(self, arrayrecord_key: str = "arrays", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arrayrecord_key = arrayrecord_key


def test_a_keyword_may_be_set_to_the_value_that_it_has() -> None:
    assert Repeating().arrayrecord_key == "arrays"
    with pytest.raises(ConfigError) as caught:
        Repeating(arrayrecord_key="model")
    assert str(caught.value).endswith("in a subclass's __init__ to super().__init__()")


@pytest.mark.parametrize(("name", "value"), [("quorum", 1.0), ("seed", False)])
def test_a_value_of_another_type_is_another_value(name: str, value: Any) -> None:
    strategy = FedAvg(quorum=1, seed=0)
    with pytest.raises(ConfigError, match=f"{name} cannot be set"):
        setattr(strategy, name, value)


@pytest.mark.parametrize("name", ["quorum", "seed", "layer", "proximal_mu"])
def test_a_keyword_set_later_is_refused_in_one_line(name: str) -> None:
    strategy = FedProx()
    before = getattr(strategy, name)
    with pytest.raises(ConfigError) as caught:
        setattr(strategy, name, 0.5)
    assert str(caught.value) == (
        f"FedProx.{name} cannot be set: give it to the constructor, FedProx({name}=...), "
        "or in a subclass's __init__ to super().__init__()"
    )
    assert getattr(strategy, name) is before


def test_other_attributes_and_the_number_of_rounds_can_be_set() -> None:
    strategy: FederatedStrategy = FedAvg()
    strategy.num_rounds = 9
    strategy.own = 3  # type: ignore[attr-defined]
    assert strategy.num_rounds == 9


def test_under_noise_the_account_stands_on_the_draws() -> None:
    strategy = FedAvg(dp_noise_multiplier=1.0, dp_delta=0.01)
    with pytest.raises(ConfigError, match="fraction_train cannot be set"):
        strategy.fraction_train = 0.5


def test_a_share_set_later_is_checked_where_it_is_read() -> None:
    strategy = FedAvg()
    strategy.fraction_train = 2.0
    with pytest.raises(ValueError, match=r"fraction_train = 2\.0: expected 0 to 1"):
        run(strategy, TamperingGrid(matrix_app(), 3), 1)


def test_what_a_subclass_sets_in_a_round_holds_from_then_on() -> None:
    trace = run(Halving(), TamperingGrid(matrix_app(), 3), 2)
    assert [len(r.train.rows) for r in trace.reports if r.train] == [3, 1]
