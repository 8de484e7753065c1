"""FedRoD: the balanced softmax by hand, what the personal head moves, and FedAvg."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedsuite.clients.personal.fedrod import log_counts
from tests.helpers import digits_experiment, final_bits, play, run_digits


def balanced(counts: list[int], label: int) -> float:
    labels = torch.repeat_interleave(torch.tensor(counts))
    shift = log_counts(labels, len(counts))
    return float(cross_entropy(shift[None], torch.tensor([label])))


def test_golden_loss() -> None:
    """Equal logits and nine examples to one: log 10 for the rare class."""
    assert balanced([9, 1], 1) == pytest.approx(math.log(10))
    assert balanced([9, 1], 0) == pytest.approx(0.105361, abs=1e-6)


def test_a_class_without_examples_gets_no_gradient() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    shift = log_counts(torch.tensor([0] * 9 + [1]), 3)
    cross_entropy(logits + shift, torch.tensor([1])).backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([0.9, -0.9, 0.0])
    assert logits.grad[0, 2] == 0


@given(st.lists(st.integers(1, 20), min_size=2, max_size=5))
def test_equal_logits_give_the_shares_of_the_classes(counts: list[int]) -> None:
    for label, count in enumerate(counts):
        assert math.exp(-balanced(counts, label)) == pytest.approx(
            count / sum(counts), 1e-5
        )


def test_the_shared_model_is_fedavgs_where_classes_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = play(method="fedavg").arrays[-1]
    other = play(method="fedrod").arrays[-1]
    assert any(not np.allclose(other[n], plain[n], atol=1e-6) for n in plain)
    monkeypatch.setattr(
        "fedsuite.clients.personal.fedrod.log_counts", lambda _, n: torch.zeros(n)
    )
    for name, array in play(method="fedrod").arrays[-1].items():
        np.testing.assert_allclose(array, plain[name], atol=1e-6)


def test_scores_are_of_the_sum_and_beside_it_of_the_shared_model() -> None:
    experiment = digits_experiment(method="fedrod", clients_per_round=2, num_rounds=1)
    report = run_digits(experiment).reports[-1]
    assert report.train is not None and report.evaluate is not None
    trained = {row["client"] for row in report.train.rows}
    for row in report.evaluate.rows:
        # The head of a client that never trained adds nothing.
        assert (row["loss"] == row["global_loss"]) is (row["client"] not in trained)


def test_the_personal_head_moves_no_shared_array(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = final_bits(method="fedrod", model="mlp")
    from fedsuite.clients.personal import fedrod

    monkeypatch.setattr(
        fedrod.FedRoDClient, "before_step", lambda self, model: self._optimizer.zero_grad()
    )
    assert final_bits(method="fedrod", model="mlp") == usual
