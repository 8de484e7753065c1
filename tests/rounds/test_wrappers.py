"""FedAvg and FedEBA in Flower's differential-privacy wrappers, by their own ``start``."""

from typing import Any

import numpy as np
import pytest
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedsuite.core.errors import ConfigError
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.drift.scaffold import Scaffold
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.fedeba_plus import FedEBAPlus
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.prompt_grid import PromptGrid
from tests.helpers import MEAN_OF_ALL, matrix_app, strategy_for, zeros

WRAPPERS = {
    "server": (DifferentialPrivacyServerSideFixedClipping, None),
    "client": (DifferentialPrivacyClientSideFixedClipping, [fixedclipping_mod]),
}


def run_wrapped(
    side: str,
    clipping_norm: float,
    layout: str,
    num_rounds: int,
    inner: FederatedStrategy | None = None,
) -> Any:
    wrapper, mods = WRAPPERS[side]
    strategy = wrapper(
        inner or strategy_for(layout, fraction_evaluate=0.0),
        noise_multiplier=0.0,
        clipping_norm=clipping_norm,
        num_sampled_clients=3,
    )
    with flower_identity():
        grid = LocalGrid(matrix_app(mods=mods), 3)
        result = strategy.start(grid, zeros(), num_rounds)
    return to_arrays(result.arrays)["weight"], strategy.strategy


@pytest.mark.parametrize("side", WRAPPERS)
def test_no_noise_and_a_huge_norm_are_plain_fedavg(side: str) -> None:
    weight, inner = run_wrapped(side, 1e9, "single", 2)
    assert weight == pytest.approx(np.full((2, 2), MEAN_OF_ALL), rel=1e-6)
    assert not inner.reports["train"].rejections


@pytest.mark.parametrize("side", WRAPPERS)
def test_small_norm_bounds_the_update(side: str) -> None:
    """All updates point the same way and are clipped to norm 1/2: so is their mean."""
    weight, _ = run_wrapped(side, 0.5, "single", 1)
    assert np.linalg.norm(weight) == pytest.approx(0.5, rel=1e-6)
    weight, _ = run_wrapped(side, 0.5, "single", 3)
    assert np.linalg.norm(weight) == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("layout", ["hosted"])
def test_layout_in_which_a_node_hosts_clients(layout: str) -> None:
    """The server-side wrapper clips each array record by itself: one a client."""
    weight, _ = run_wrapped("server", 0.5, layout, 1)
    assert np.linalg.norm(weight) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("side", WRAPPERS)
def test_fedeba_trains_inside_both(side: str) -> None:
    """Its mean at temperature 1e9 is plain: 7 / 3."""
    keys: dict[str, Any] = {"effective_clients": 0.0, "temperature": 1e9}
    inner = FedEBA(loss_key="loss", fraction_evaluate=0.0, **keys)
    weight, inner = run_wrapped(side, 1e9, "single", 2, inner)
    assert weight == pytest.approx(np.full((2, 2), 7 / 3), rel=1e-6)
    assert not inner.reports["train"].rejections


@pytest.mark.parametrize(
    ("wrapper", "mods"),
    [
        (DifferentialPrivacyServerSideAdaptiveClipping, None),
        (DifferentialPrivacyClientSideAdaptiveClipping, [adaptiveclipping_mod]),
    ],
)
@pytest.mark.parametrize("prompt", [False, True])
def test_adaptive_clipping_goes_through_the_replies_twice(
    wrapper: Any, mods: Any, prompt: bool
) -> None:
    """Nobody is clipped at a norm of 1e9, and Flower lowers the norm by what it should."""
    inner = strategy_for("single", fraction_evaluate=0.0)
    settings = {"num_sampled_clients": 3, "clipped_count_stddev": 0.0}
    strategy = wrapper(inner, 0.0, initial_clipping_norm=1e9, **settings)
    with flower_identity():
        grid: Any = LocalGrid(matrix_app(mods=mods), 3)
        result = strategy.start(PromptGrid(grid) if prompt else grid, zeros(), 2)
    weight = to_arrays(result.arrays)["weight"]
    assert weight == pytest.approx(np.full((2, 2), MEAN_OF_ALL), rel=1e-6)
    assert strategy.clipping_norm != 1e9


@pytest.mark.parametrize(
    ("strategy", "does"),
    [
        (FedEBAPlus, "FedEBAPlus also sends query.probe"),
        (Scaffold, "Scaffold sends arrays, control"),
    ],
)
def test_what_clipping_in_clients_cannot_carry_is_refused_at_once(
    strategy: Any, does: str
) -> None:
    """Flower would drop each round in silence, and end with no model: KeyError 'weight'."""
    with pytest.raises(ConfigError, match=does) as caught:
        run_wrapped("client", 1.0, "single", 2, strategy(fraction_evaluate=0.0))
    assert "\n" not in str(caught.value)


def test_clipping_in_clients_refuses_the_hello_and_we_say_so() -> None:
    with pytest.raises(ConfigError, match="identity = 'partition'"):
        run_wrapped("client", 1.0, "hosted", 1)
