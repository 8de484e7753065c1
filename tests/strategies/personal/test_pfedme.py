"""pFedMe: the golden steps, and the extremes that never move the global model."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.clients.personal.pfedme import PFedMeClient
from fedsuite.strategies.personal.pfedme import PFedMe
from tests.helpers import play
from tests.strategies.personal.by_hand import train_once

TOLD = {"pfedme-lambda": 2.0, "pfedme-learning-rate": 0.1, "pfedme-inner-steps": 2}


def test_golden_steps() -> None:
    """By hand: theta is 0.1, then 0.17; w_k follows to 0.034."""
    found = train_once(PFedMeClient, TOLD, learning_rate=0.1)
    assert found.kept == pytest.approx({"x": 0.17})
    assert found.sent == pytest.approx(0.034)


def test_many_inner_steps_reach_the_envelopes_minimum() -> None:
    """The minimiser of (x - 1)^2 / 2 + x^2 is a third."""
    told = {**TOLD, "pfedme-inner-steps": 200}
    assert train_once(PFedMeClient, told, learning_rate=0.1).kept["x"] == pytest.approx(
        1 / 3
    )


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 9.0), st.integers(1, 4), st.integers(1, 3))
def test_what_is_sent_lies_between_the_received_and_the_personal_model(
    pull: float, inner: int, steps: int
) -> None:
    told = {**TOLD, "pfedme-lambda": pull, "pfedme-inner-steps": inner}
    found = train_once(PFedMeClient, told, learning_rate=0.05, local_steps=steps)
    assert 0.0 <= found.sent <= found.kept["x"] + 1e-12
    assert found.metrics["num-steps"] == inner * steps


@pytest.mark.parametrize("changes", [{"pfedme_lambda": 0.0}, {"pfedme_server_step": 0.0}])
def test_the_global_model_stays(changes: dict[str, Any]) -> None:
    trace = play(method="pfedme", **changes)
    for name, array in trace.arrays[-1].items():
        np.testing.assert_array_equal(array, trace.arrays[0][name])


def test_a_pull_beyond_the_personal_model_is_refused() -> None:
    with pytest.raises(ValueError, match="lower one of them"):
        PFedMe(pfedme_lambda=15.0, pfedme_learning_rate=0.1)
