"""FedEM: responsibilities, a weighted step and means by hand, FedAvg, state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays
from torch import Tensor, nn

import fedsuite
from fedsuite.clients.personal.fedem import FedEMClient, mean_shares
from fedsuite.clients.personal.several_models import e_step
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, SHARES, Arrays, Reply, Request
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.personal.fedem import FedEM
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import aggregated, bits, play
from tests.small_runs import SMALL, client_states, final_model

HALF = np.full(2, -np.log(2))
LOSSES = np.array([[0.0, np.log(3)], [0.0, 0.0]])
KEYS: dict[str, Any] = {"model": "mlp", "hidden_width": 16, "partitioner": "dirichlet"}


def test_golden_responsibilities() -> None:
    """By hand: rows (3/4, 1/4) and (1/2, 1/2), mean (5/8, 3/8); then (5/6, 1/6), .."""
    found = e_step(HALF, LOSSES)
    np.testing.assert_allclose(np.exp(found), [[0.75, 0.25], [0.5, 0.5]])
    shares = mean_shares(found, HALF)
    np.testing.assert_allclose(np.exp(shares), [0.625, 0.375])
    again = e_step(shares, LOSSES)
    np.testing.assert_allclose(np.exp(again), [[5 / 6, 1 / 6], [5 / 8, 3 / 8]])
    np.testing.assert_allclose(np.exp(mean_shares(again, shares)), [35 / 48, 13 / 48])


def test_a_client_without_rows_keeps_its_shares() -> None:
    assert mean_shares(np.zeros((0, 2)), HALF) is HALF


@given(
    numpy_arrays(np.float64, (4, 3), elements=st.floats(0, 500)),
    numpy_arrays(np.float64, (4, 1), elements=st.floats(-50, 50)),
)
def test_shares_are_of_1_and_a_common_loss_of_a_row_changes_nothing(
    losses: np.ndarray, shift: np.ndarray
) -> None:
    equal = np.full(3, -np.log(3))
    shares = np.exp(mean_shares(e_step(equal, losses), equal))
    assert shares.sum() == pytest.approx(1.0)
    moved = np.exp(mean_shares(e_step(equal, losses + shift), equal))
    np.testing.assert_allclose(moved, shares, atol=1e-9)


class PerRow(nn.Module):
    """Row i of the data picks logits (z_i, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        first = self.z[features[:, 0].long()]
        return torch.stack([first, torch.zeros_like(first)], dim=1)


def trained(
    models: list[list[float]], network: PerRow | None = None, **options: Any
) -> tuple[Reply, Arrays]:
    """Return reply and state of a client of two rows of label 0, after one step of 1."""
    data = Split(torch.tensor([[0.0], [1.0]]), torch.zeros(2, dtype=torch.int64))
    store = MemoryStore()
    training = TrainingOptions(**{"batch_size": 0, "learning_rate": 1.0, **options})
    client = FedEMClient(network or PerRow(), data, data, store=store, training=training)
    records = {
        f"model-{m}" if m else ARRAYS: {"z": np.array(z)} for m, z in enumerate(models)
    }
    request = Request("train", 0, records, {"server-round": 1}, new_version="new")
    return client.answer(request), store.load(0, "new")


@pytest.mark.parametrize("options", [{}, {"batch_size": 1, "learning_rate": 0.5}])
def test_golden_step(options: dict[str, Any]) -> None:
    """By hand: probabilities of label 0 are 3/4 and 1/2 in the first model, 1/4 and 1/2.

    So s = (3/4, 1/4) and (1/2, 1/2). A row's gradient is s (p - 1) / 2, of one row alone
    twice that: z = (log 3 + 3/32, 1/8), and (-log 3 + 3/32, 1/8).
    """
    high = float(np.log(3))
    reply, state = trained([[high, 0.0], [-high, 0.0]], **options)
    assert set(reply.arrays) == {ARRAYS, "model-1"}
    np.testing.assert_allclose(np.exp(state[SHARES]), [0.625, 0.375])
    first, second = (reply.arrays[name]["z"] for name in (ARRAYS, "model-1"))
    np.testing.assert_allclose(first, [high + 3 / 32, 1 / 8])
    np.testing.assert_allclose(second, [-high + 3 / 32, 1 / 8])


@pytest.mark.parametrize("best", [0, 1])
def test_after_training_the_network_is_the_model_that_fits_best(best: int) -> None:
    models = [[-1.0, 0.0], [-1.0, 0.0]]
    models[best] = [1.0, 0.0]
    network = PerRow()
    reply, _ = trained(models, network)
    name = f"model-{best}" if best else ARRAYS
    np.testing.assert_array_equal(network.z.detach().numpy(), reply.arrays[name]["z"])


def test_golden_means() -> None:
    """By hand: of 1 and 5 with 3 rows and 1 the mean is 2, of 2 and 6 it is 3."""
    strategy = FedEM(fedem_models=2)
    strategy.reports["train"] = PhaseReport("train", {})
    strategy.others = [{"w": np.array([9.0])}]
    replies = [
        ClientReply(
            0, {ARRAYS: {"w": np.ones(1)}, "model-1": {"w": np.full(1, 2.0)}}, {}, 3
        ),
        ClientReply(
            1, {ARRAYS: {"w": np.full(1, 5.0)}, "model-1": {"w": np.full(1, 6.0)}}, {}, 1
        ),
    ]
    first = aggregated(strategy, {"w": np.array([0.0])}, iter(replies))
    assert first is not None
    assert (float(first["w"][0]), float(strategy.others[0]["w"][0])) == (2.0, 3.0)


def test_one_model_is_fedavg_bit_for_bit() -> None:
    found, plain = (
        play(method="fedem", fedem_models=1, **KEYS),
        play(method="fedavg", **KEYS),
    )
    assert bits(found.arrays[-1]) == bits(plain.arrays[-1])
    for mine, theirs in zip(found.reports, plain.reports, strict=True):
        assert mine.evaluate is not None and theirs.evaluate is not None
        assert [r["loss"] for r in mine.evaluate.rows] == [
            r["loss"] for r in theirs.evaluate.rows
        ]


def test_equal_models_stay_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedsuite.strategies.personal.several_models.shuffled",
        lambda arrays, seed, number: arrays,
    )
    seen: list[FedEM] = []
    combine = FedEM.combine

    def watched(self: FedEM, arrays: Arrays, replies: Any) -> Arrays | None:
        seen.append(self)
        return combine(self, arrays, replies)

    monkeypatch.setattr(FedEM, "combine", watched)
    last = play(method="fedem", **KEYS).arrays[-1]
    assert len(seen) == 3
    for other in seen[-1].others:
        np.testing.assert_equal(other, last)


def test_a_new_client_is_scored_by_one_step_of_its_losses() -> None:
    trace = play(method="fedem", clients_per_round=1, num_rounds=1, **KEYS)
    report = trace.reports[0].evaluate
    assert report is not None and len(report.rows) == 4


def test_resumed_is_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {**SMALL, "method": "fedem"}
    short = fedsuite.run({**keys, "num-rounds": 2, "run-name": "short"})
    longer = fedsuite.resume(short.path, num_rounds=4)
    whole = fedsuite.run({**keys, "num-rounds": 4, "run-name": "whole"})
    assert final_model(longer.path) == final_model(whole.path)
    assert client_states(longer.path) == client_states(whole.path)
    found = longer.client_values("evaluate", "loss")
    assert found == whole.client_values("evaluate", "loss")
