"""Keywords set after construction are refused: what stands on them is made once."""

from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedsuite.core.errors import ConfigError
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from tests.helpers import TamperingGrid, matrix_app, run


class Halving(FedAvg):
    """Asks fewer clients from the second round on, as Flower's users would."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        if server_round == 2:
            self.fraction_train, self.min_train_nodes = 0.34, 1
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("name", ["quorum", "seed", "layer", "proximal_mu"])
def test_a_keyword_set_later_is_refused_in_one_line(name: str) -> None:
    strategy = FedProx()
    before = getattr(strategy, name)
    with pytest.raises(ConfigError) as caught:
        setattr(strategy, name, 0.5)
    assert str(caught.value) == (
        f"FedProx.{name} cannot be set: give it to the constructor, FedProx({name}=...)"
    )
    assert getattr(strategy, name) is before


def test_other_attributes_and_the_number_of_rounds_can_be_set() -> None:
    strategy: FederatedStrategy = FedAvg()
    strategy.num_rounds = 9
    strategy.own = 3  # type: ignore[attr-defined]
    assert strategy.num_rounds == 9


def test_how_many_are_drawn_can_be_set_between_rounds() -> None:
    trace = run(Halving(), TamperingGrid(matrix_app(), 3), 2)
    assert [len(r.train.rows) for r in trace.reports if r.train] == [3, 1]


def test_a_share_that_is_none_ends_the_round_that_reads_it() -> None:
    strategy = FedAvg()
    strategy.fraction_train = 1.5
    with pytest.raises(ValueError, match=r"^fraction_train = 1.5: expected 0 to 1$"):
        run(strategy, TamperingGrid(matrix_app(), 3), 1)


def test_under_noise_who_is_drawn_stays() -> None:
    strategy = FedAvg(
        dp_noise_multiplier=1.0, dp_clipping_norm=1.0, num_clients=3, num_rounds=1
    )
    with pytest.raises(ConfigError, match="cannot be set"):
        strategy.fraction_train = 0.5
