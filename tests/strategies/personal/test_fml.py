"""FML: losses and a step by hand, FedAvg beside Standalone, gradients that stay apart."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsuite.clients.personal.fml import FMLClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import bits, play

KEYS: dict[str, Any] = {"model": "mlp", "hidden_width": 16, "partitioner": "dirichlet"}
ROW = Split(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))


class Logits(nn.Module):
    """Gives two logits, whatever the inputs."""

    def __init__(self, first: float = 0.0) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.tensor([first, 0.0], dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return self.z.expand(len(features), 2)


def client_told(alpha: float, beta: float, **options: Any) -> FMLClient:
    client = FMLClient(Logits(), ROW, ROW, **options)
    client.heard = {"fml-alpha": alpha, "fml-beta": beta}
    return client


def test_golden_losses() -> None:
    """By hand: p = (3/4, 1/4) of theta, q = (1/2, 1/2) of w, label 0.

    CE(p) = log 4/3 and KL(q || p) = log(1/2) - log(3/4)/2 - log(1/4)/2 = log(4/3)/2.
    CE(q) = log 2 and KL(p || q) = 3/4 log(3/2) + 1/4 log(1/2).
    """
    client = client_told(0.25, 0.5)
    shared, own = Logits(), Logits(math.log(3))
    found = client.losses(shared, own, ROW.features, ROW.labels)
    backward = 0.75 * math.log(1.5) - 0.25 * math.log(2)
    of_theta = 0.25 * math.log(4 / 3) + 0.75 * math.log(4 / 3) / 2
    of_w = 0.5 * math.log(2) + 0.5 * backward
    assert [loss.item() for loss in found] == pytest.approx([of_w, of_theta])
    assert (of_w, of_theta) == pytest.approx((0.411979, 0.179801), abs=1e-6)


def test_golden_step() -> None:
    """By hand: gradients beta (q - y) + (1 - beta) (q - p), and of theta likewise.

    With q = (1/2, 1/2), p = (3/4, 1/4), label 0: w gets 0.5 x -1/2 + 0.5 x -1/4 = -0.375,
    theta 0.25 x -1/4 + 0.75 x 1/4 = 0.125.
    """
    store = MemoryStore()
    store.save(0, "old", {"z": np.array([math.log(3), 0.0])}, set())
    options = TrainingOptions(local_steps=1, batch_size=1, learning_rate=1.0)
    client = client_told(0.25, 0.5, store=store, training=options)
    request = Request(
        "train",
        0,
        {ARRAYS: {"z": np.zeros(2)}},
        {"fml-alpha": 0.25, "fml-beta": 0.5, "server-round": 1},
        start_version="old",
        new_version="new",
    )
    sent = client.answer(request).arrays[ARRAYS]["z"]
    kept = store.load(0, "new")["z"]
    assert sent.tolist() == pytest.approx([0.375, -0.375])
    assert kept.tolist() == pytest.approx([math.log(3) - 0.125, 0.125])


@settings(max_examples=25, deadline=None)
@given(st.floats(-3, 3), st.floats(0, 1), st.floats(0, 1))
def test_no_loss_moves_the_other_model(first: float, alpha: float, beta: float) -> None:
    client = client_told(alpha, beta)
    shared, own = Logits(), Logits(first)
    of_w, of_theta = client.losses(shared, own, ROW.features, ROW.labels)
    of_w.backward()  # type: ignore[no-untyped-call]
    assert shared.z.grad is not None and own.z.grad is None
    shared.z.grad = None
    of_theta.backward()  # type: ignore[no-untyped-call]
    assert own.z.grad is not None and shared.z.grad is None


def outcome(**changes: Any) -> tuple[dict[str, bytes], list[float]]:
    """Return the shared model, and the loss of each client's own."""
    trace = play(**changes, **KEYS)
    report = trace.reports[-1].evaluate
    assert report is not None
    return bits(trace.arrays[-1]), [float(row["loss"]) for row in report.rows]


def test_labels_alone_are_fedavg_beside_standalone() -> None:
    alone = {"method": "fml", "fml_alpha": 1.0, "fml_beta": 1.0}
    shared, own = outcome(method="fedavg")[0], outcome(method="standalone")[1]
    assert outcome(**alone) == (shared, own)
    for name in ("fml_alpha", "fml_beta"):
        # Each share is of one model; the other one only teaches.
        found, losses = outcome(**{**alone, name: 0.5})
        assert (found == shared) is (name == "fml_alpha")
        assert (losses == own) is (name == "fml_beta")


def test_both_models_stay_alike_in_their_first_training() -> None:
    trace = play(method="fml", num_clients=1, num_rounds=3, **KEYS)
    for report in trace.reports:
        assert report.evaluate is not None
        assert all(row["loss"] == row["global_loss"] for row in report.evaluate.rows)
