"""MOON: its golden number, and the extremes that give FedAvg."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.drift.moon import contrastive_loss
from tests.helpers import bits, final_bits, play


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def test_golden_term() -> None:
    """Cosines 0.5 with the received model's features and 0 with the last ones, T = 0.5."""
    own, shared, previous = rows(1.0, 0.0), rows(0.5, 0.75**0.5), rows(0.0, -3.0)
    found = contrastive_loss(own, shared, previous, 0.5)
    assert float(found) == pytest.approx(0.313262, abs=1e-6)


@given(st.lists(st.floats(0.1, 5), min_size=3, max_size=3), st.floats(0.1, 2))
def test_equal_anchors_give_log_2_without_a_gradient(
    values: list[float], temperature: float
) -> None:
    own, anchor = rows(*values).requires_grad_(), rows(1.0, 2.0, -1.0)
    loss = contrastive_loss(own, anchor, anchor, temperature)
    loss.backward()
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert own.grad is not None and float(own.grad.abs().max()) < 1e-6


MLP = {"model": "mlp", "hidden_width": 16, "local_epochs": 2}


def test_weight_0_is_fedavg_bit_for_bit() -> None:
    plain = final_bits(**MLP)
    assert final_bits(method="moon", moon_weight=0.0, **MLP) == plain
    assert final_bits(method="moon", **MLP) != plain


def test_the_first_round_is_fedavgs() -> None:
    once = {**MLP, "num_rounds": 1}
    assert final_bits(method="moon", **once) == final_bits(**once)


def test_a_newcomer_contrasts_with_the_initial_model() -> None:
    """In two rounds of one client each, who never trained before."""
    drawn = {**MLP, "num_rounds": 2, "clients_per_round": 1}
    trace = play(method="moon", **drawn)
    first, second = ({row["client"] for row in r.train.rows} for r in trace.reports)
    assert first.isdisjoint(second)
    assert bits(trace.arrays[-1]) != final_bits(**drawn)
