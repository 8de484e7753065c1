"""APFL: the golden step, and the shares at which it is FedAvg and Standalone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.clients.personal.apfl import SHARE, APFLClient
from fedsuite.messages.records import ARRAYS, Request
from tests.helpers import final_bits, play
from tests.strategies.personal.by_hand import train_once

TOLD = {"apfl-alpha": 0.25, "apfl-adaptive": True}
KEPT = {"x": 0.5, SHARE: 0.5}


def test_golden_step() -> None:
    """By hand: the mixture is 0.25, its gradient -0.75, and the share's -0.375."""
    found = train_once(APFLClient, TOLD, KEPT, learning_rate=0.1)
    assert found.sent == pytest.approx(0.1)
    assert found.kept == pytest.approx({"x": 0.5375, SHARE: 0.5375})
    served = Request("evaluate", 0, {ARRAYS: {"x": np.array([0.1])}}, {}, "new")
    client: Any = found.client
    client.load_own(served)
    assert float(client.model.x.detach()) == pytest.approx(0.335156, abs=1e-6)


def test_the_first_step_alone_moves_the_share() -> None:
    one = train_once(APFLClient, TOLD, KEPT, learning_rate=0.1)
    two = train_once(APFLClient, TOLD, KEPT, learning_rate=0.1, local_steps=2)
    assert two.kept[SHARE] == one.kept[SHARE]
    # The second step takes the new share: the mixture is 0.335156.
    assert two.kept["x"] == pytest.approx(0.5375 + 0.1 * 0.5375 * (1 - 0.335156), abs=1e-6)


def test_a_fixed_share_stays_and_a_new_client_begins_with_the_one_told() -> None:
    fixed = train_once(APFLClient, {**TOLD, "apfl-adaptive": False}, KEPT)
    new = train_once(APFLClient, {**TOLD, "apfl-adaptive": False})
    assert (fixed.kept[SHARE], new.kept[SHARE]) == (0.5, 0.25)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 1.0), st.floats(-5.0, 5.0), st.floats(0.01, 1.9))
def test_the_share_stays_between_0_and_1(share: float, own: float, rate: float) -> None:
    found = train_once(APFLClient, TOLD, {"x": own, SHARE: share}, learning_rate=rate)
    assert 0.0 <= found.kept[SHARE] <= 1.0


@pytest.mark.parametrize("changes", [{}, {"apfl_alpha": 0.0, "apfl_adaptive": False}])
def test_the_shared_model_is_fedavgs_bit_for_bit(changes: dict[str, Any]) -> None:
    assert final_bits(method="apfl", **changes) == final_bits(method="fedavg")


def test_a_fixed_share_of_1_is_training_alone() -> None:
    scores = []
    for own in ({"method": "standalone"}, {"method": "apfl", "apfl_alpha": 1.0}):
        fixed = {"apfl_adaptive": False} if "apfl_alpha" in own else {}
        report = play(**own, **fixed).reports[-1].evaluate
        assert report is not None
        scores.append([row["loss"] for row in report.rows])
    assert scores[0] == scores[1]
