"""FedNTD: its golden number, and the extremes that give FedAvg."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.drift.fedntd import without_true
from fedsuite.models.distillation import distillation_loss
from tests.helpers import final_bits


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.120115), (3.0, 0.124426)])
def test_golden_term(temperature: float, expected: float) -> None:
    """Three classes, the true one first: what is left is (1, 0) against (0, 0)."""
    labels = torch.tensor([0])
    student = without_true(torch.tensor([[7.0, 1.0, 0.0]]), labels)
    teacher = without_true(torch.tensor([[-7.0, 0.0, 0.0]]), labels)
    found = distillation_loss(student, teacher, temperature)
    assert float(found) == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 3), st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_the_true_class_alone_is_left_out(label: int, logits: list[float]) -> None:
    found = without_true(torch.tensor([logits]), torch.tensor([label])).tolist()[0]
    left = [value for index, value in enumerate(logits) if index != label]
    assert found == pytest.approx(left)


def test_weight_0_is_fedavg_bit_for_bit() -> None:
    plain = final_bits(local_epochs=2)
    assert final_bits(method="fedntd", fedntd_weight=0.0, local_epochs=2) == plain
    assert final_bits(method="fedntd", fedntd_weight=1.0, local_epochs=2) != plain
