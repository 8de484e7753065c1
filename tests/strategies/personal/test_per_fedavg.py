"""Per-FedAvg: the golden step, pairs of mini-batches, and the rate that gives FedAvg."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.clients.personal.per_fedavg import PerFedAvgClient
from fedsuite.training.loop import TrainingOptions
from tests.helpers import final_bits, play
from tests.strategies.personal.by_hand import train_once


def test_golden_step() -> None:
    """By hand: w' = 0.1, whose gradient is -0.9, so that one step of 0.1 ends at 0.09."""
    found = train_once(
        PerFedAvgClient, {"adaptation-rate": 0.1}, learning_rate=0.1, local_steps=2
    )
    assert found.sent == pytest.approx(0.09)
    assert found.metrics["num-steps"] == 1


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 0.9), st.floats(0.01, 0.9))
def test_the_gradient_is_the_one_ahead(ahead: float, rate: float) -> None:
    found = train_once(
        PerFedAvgClient, {"adaptation-rate": ahead}, learning_rate=rate, local_steps=2
    )
    assert found.sent == pytest.approx(rate * (1 - ahead))


@pytest.mark.parametrize(("steps", "expected"), [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_batches_come_in_pairs_and_a_single_one_is_used_twice(
    steps: int, expected: int
) -> None:
    found = train_once(PerFedAvgClient, {"adaptation-rate": 0.1})
    client: Any = found.client
    options = TrainingOptions(local_steps=steps, batch_size=1)
    batches = client.mini_batches(2, options, torch.Generator())
    assert sum(1 for _ in batches) == expected
    assert client._ahead is None


def test_rate_0_is_fedavg_on_the_second_batches() -> None:
    """With two batches of equal rows FedAvg's single step is Per-FedAvg's."""
    whole = {"batch_size": 0, "local_epochs": 1}
    zero = final_bits(method="per-fedavg", adaptation_rate=0.0, **whole)
    assert zero == final_bits(method="fedavg", **whole)
    assert final_bits(method="per-fedavg", adaptation_rate=0.1, **whole) != zero


def test_clients_are_scored_one_step_ahead() -> None:
    scores = []
    for rate in (0.0, 0.5):
        report = play(method="per-fedavg", adaptation_rate=rate, num_rounds=1).reports[-1]
        assert report.evaluate is not None
        scores.append([row["loss"] for row in report.evaluate.rows])
    assert scores[0] != scores[1]
