"""Keywords set after construction are refused: what stands on them is made once."""

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from tests.helpers import TamperingGrid, matrix_app, run


class Halving(FedAvg):
    """Asks half of the clients from the second round on, as Flower's users would."""

    def drawn(self, phase: str) -> list[int]:
        asked = super().drawn(phase)
        return asked if self.server_round < 2 else asked[:1]


@pytest.mark.parametrize("name", ["fraction_train", "seed", "layer", "proximal_mu"])
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


def test_a_method_may_ask_others_from_round_to_round() -> None:
    trace = run(Halving(), TamperingGrid(matrix_app(), 3), 2)
    assert [len(r.train.rows) for r in trace.reports if r.train] == [3, 1]
