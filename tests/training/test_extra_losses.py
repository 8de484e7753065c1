"""FedDecorr's and FedLC's terms: golden numbers, extremes, and methods around them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.training.extra_losses import (
    calibration,
    decorrelated,
    decorrelation,
    loss_on,
)
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.losses import cross_entropy
from tests.helpers import final_bits

IDENTITY = nn.Identity()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1.0, 1.0], [-1.0, -1.0]], 0.5),
        ([[1.0, 1.0], [-1.0, 1.0], [0.0, -2.0]], 0.0),
        ([[3.0, 1.0]], 0.0),
        ([[3.0], [1.0]], 0.0),
        ([[2.0, 7.0], [2.0, 8.0]], 0.0),
    ],
)
def test_golden_decorrelation(rows: list[list[float]], expected: float) -> None:
    """By hand; one row, one column and a constant column have no correlation."""
    assert float(decorrelation(torch.tensor(rows))) == pytest.approx(expected, abs=1e-6)


@given(st.integers(2, 7), st.integers(2, 7), st.integers(0, 100))
def test_decorrelation_is_the_mean_squared_correlation(
    count: int, width: int, seed: int
) -> None:
    """Whether x^T x or x x^T is the smaller."""
    # The term adds 1e-8 to a variance: columns are far wider.
    drawn = 100 * np.random.default_rng(seed).normal(size=(count, width))
    squares = np.corrcoef(drawn.T) ** 2
    mean = (squares.sum() - width) / (width * (width - 1))
    found = float(decorrelation(torch.from_numpy(drawn)))
    assert found == pytest.approx((count - 1) ** 2 / count * mean, rel=1e-5)


@pytest.mark.parametrize(("label", "expected"), [(0, 0.474077), (1, 0.974077)])
def test_golden_calibration(label: int, expected: float) -> None:
    """Sixteen rows of class 0 and one of class 1: equal logits 1 become 0.5 and 0."""
    rows = torch.tensor([0] * 16 + [1])
    loss = loss_on(TrainingOptions(logit_calibration=1.0), rows)
    found = loss(IDENTITY, torch.ones(1, 2), torch.tensor([label]))
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_a_class_without_rows_is_far_below() -> None:
    found = calibration(torch.tensor([0, 0]), 2, 0.5)
    assert found.tolist() == pytest.approx([0.5 * 2**-0.25, 50.0])


@given(st.integers(1, 9), st.floats(0.0, 2.0))
def test_equal_counts_change_no_loss(count: int, strength: float) -> None:
    rows = torch.arange(3).repeat(count)
    logits, label = torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([1])
    loss = loss_on(TrainingOptions(logit_calibration=strength), rows)
    plain = cross_entropy(IDENTITY, logits, label)
    assert float(loss(IDENTITY, logits, label)) == pytest.approx(float(plain), abs=1e-5)


def test_features_are_those_of_the_last_pass() -> None:
    """A method may pass other rows through the network first."""
    network = nn.Linear(2, 2)
    last = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])

    def loss(model: nn.Module, features: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        model(features + features.flip(0))
        return model(features).sum() * 0

    found = decorrelated(loss, 0.1)(network, last, torch.tensor([0, 1]))
    assert float(found) == pytest.approx(0.05)


KEYS = ("decorrelation_weight", "logit_calibration")
BRIEF = {"num_rounds": 2, "num_clients": 3, "model": "mlp", "hidden_width": 16}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("method", ["fedavg", "fedntd", "scaffold", "per-fedavg", "apfl"])
def test_a_term_changes_what_a_method_trains(method: str, name: str) -> None:
    plain = final_bits(method=method, **BRIEF)
    assert final_bits(method=method, **BRIEF, **{name: 0.3}) != plain


def test_a_term_of_0_is_the_method_bit_for_bit() -> None:
    assert final_bits(**BRIEF, **dict.fromkeys(KEYS, 0.0)) == final_bits(**BRIEF)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"method": "fedrod", "model": "mlp", "logit_calibration": 0.3},
            "balances the logits",
        ),
        ({"model": "linear", "decorrelation_weight": 0.1}, "features are inputs"),
    ],
)
def test_a_term_without_effect_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        final_bits(num_rounds=1, **settings)


def test_sequences_are_refused() -> None:
    for name in KEYS:
        with pytest.raises(ConfigError, match="one class per row"):
            loss_on(TrainingOptions(**{name: 0.1}), torch.zeros(2, 3, dtype=torch.long))
