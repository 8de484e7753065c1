"""FOCUS: shares, means and mixtures by hand, FedAvg's plain mean, false shares, state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedsuite
from fedsuite.clients.fair.focus import FOCUSClient
from fedsuite.clients.personal.several_models import Mixture, e_step
from fedsuite.messages.records import ARRAYS, SHARES, Arrays, Reply, Request
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.fair.focus import FOCUS
from fedsuite.strategies.personal.several_models import shuffled
from tests.helpers import aggregated, bits, play
from tests.small_runs import SMALL, client_states, final_model

LOSSES = np.array([[0.0, np.log(3)], [np.log(3), 0.0], [0.0, 0.0]])
TRAINED = [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]
KEYS: dict[str, Any] = {"model": "mlp", "hidden_width": 16, "partitioner": "dirichlet"}


def shares_after(rounds: int) -> np.ndarray:
    shares = np.full((3, 2), -np.log(2))
    for _ in range(rounds):
        shares = np.array([e_step(*pair) for pair in zip(shares, LOSSES, strict=True)])
    return np.exp(shares)


def test_golden_shares() -> None:
    once = [[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]]
    np.testing.assert_allclose(shares_after(1), once)
    np.testing.assert_allclose(shares_after(2), [[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])


def means(shares: np.ndarray, counts: tuple[float, ...] = (1, 1, 1), **keys: Any) -> Any:
    strategy = FOCUS(**keys)
    strategy.reports["train"] = PhaseReport("train", {})
    strategy.others = [{"w": np.array([9.0])}]
    replies = [
        ClientReply(
            k,
            {
                ARRAYS: {"w": np.array([TRAINED[0][k]])},
                "model-1": {"w": np.array([TRAINED[1][k]])},
                SHARES: {SHARES: shares[k]},
            },
            {},
            counts[k],
        )
        for k in range(3)
    ]
    first = aggregated(strategy, {"w": np.array([0.0])}, iter(replies))
    assert first is not None
    return [float(first["w"][0]), float(strategy.others[0]["w"][0])]


def test_golden_means() -> None:
    assert means(shares_after(1)) == pytest.approx([4 / 1.5, 6.5 / 1.5])
    assert means(shares_after(2)) == pytest.approx([2.466667, 4.533333], abs=1e-6)
    by_size = means(shares_after(1), (10, 20, 10), focus_size_weights=True)
    assert by_size == pytest.approx([19 / 7, 38 / 9])


def test_a_model_of_no_share_stays_and_whole_shares_touch_one_model() -> None:
    whole = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert means(whole) == [3.0, 9.0]
    # Client 2 trains for the second model alone.
    assert means(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])) == [2.0, 6.0]


@given(st.lists(st.floats(0.0, 500.0), min_size=1, max_size=5), st.floats(-50.0, 50.0))
def test_shares_are_of_1_and_a_common_loss_changes_nothing(
    losses: list[float], shift: float
) -> None:
    equal = np.zeros(len(losses))
    shares = np.exp(e_step(equal, np.array(losses)))
    assert shares.sum() == pytest.approx(1.0)
    moved = np.exp(e_step(equal, np.array(losses) + shift))
    np.testing.assert_allclose(moved, shares, atol=1e-9)


class Fixed(nn.Module):
    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor([probabilities]).log() + 3.0

    def forward(self, features: Tensor) -> Tensor:
        return self.logits


def test_golden_mixture() -> None:
    networks = [Fixed([0.8, 0.2]), Fixed([0.4, 0.6])]
    found = Mixture(networks, [np.log(0.75), np.log(0.25)])(torch.zeros(1, 1))
    assert found.exp()[0].tolist() == pytest.approx([0.7, 0.3])


def test_one_model_is_the_plain_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    found = play(method="focus", focus_models=1, **KEYS)
    monkeypatch.setattr(FedAvg, "weight_of", lambda self, r: float(r.num_examples > 0))
    expected = play(method="fedavg", **KEYS)
    assert bits(found.arrays[-1]) == bits(expected.arrays[-1])
    for mine, theirs in zip(found.reports, expected.reports, strict=True):
        assert mine.evaluate is not None and theirs.evaluate is not None
        assert [r["loss"] for r in mine.evaluate.rows] == [
            r["loss"] for r in theirs.evaluate.rows
        ]


def test_equal_models_stay_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedsuite.strategies.personal.several_models.shuffled",
        lambda arrays, seed, number: arrays,
    )
    seen: list[FOCUS] = []
    combine = FOCUS.combine

    def watched(self: FOCUS, arrays: Arrays, replies: Any) -> Arrays | None:
        seen.append(self)
        return combine(self, arrays, replies)

    monkeypatch.setattr(FOCUS, "combine", watched)
    last = play(method="focus", focus_models=3, **KEYS).arrays[-1]
    assert len(seen) == 3
    for other in seen[-1].others:
        np.testing.assert_equal(other, last)


def test_first_models_are_draws_of_one_law() -> None:
    arrays = {"weight": np.arange(12.0).reshape(3, 4), "bias": np.zeros(4)}
    one, two = shuffled(arrays, 0, 1), shuffled(arrays, 0, 2)
    for model in (one, two):
        assert sorted(model["weight"].reshape(-1)) == list(range(12))
        assert model["weight"].shape == (3, 4)
    assert not np.array_equal(one["weight"], two["weight"])
    assert not np.array_equal(one["weight"], arrays["weight"])
    np.testing.assert_equal(one, shuffled(arrays, 0, 1))


@pytest.mark.parametrize(
    "row", [[0.7, 0.7], [1.5, -0.5], [0.0, 0.0], [np.nan, 1.0]], ids=str
)
def test_shares_that_are_none_are_not_used(
    row: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FOCUSClient.on_train

    def lying(client: FOCUSClient, request: Request) -> Reply:
        reply = honest(client, request)
        if client.client_id:
            return reply
        return Reply({**reply.arrays, SHARES: {SHARES: np.array(row)}}, reply.metrics)

    monkeypatch.setattr(FOCUSClient, "on_train", lying)
    trace = play(method="focus", num_rounds=1, **KEYS)
    (rejection,) = [r for phase in trace.reports[0].phases for r in phase.rejections]
    assert (rejection.client_id, "shares" in rejection.reason) == (0, True)


def test_a_later_model_of_huge_change_is_scaled_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = FOCUSClient.on_train

    def huge(client: FOCUSClient, request: Request) -> Reply:
        reply = honest(client, request)
        if client.client_id:
            return reply
        model = {n: 1e6 + a for n, a in reply.arrays["model-1"].items()}
        return Reply({**reply.arrays, "model-1": model}, reply.metrics)

    monkeypatch.setattr(FOCUSClient, "on_train", huge)
    trace = play(method="focus", num_rounds=1, **KEYS)
    assert trace.reports[0].train is not None
    (bounded,) = trace.reports[0].train.bounded
    assert (bounded.client_id, "model-1" in bounded.reason) == (0, True)


def test_a_new_client_is_scored_by_one_step_of_its_losses() -> None:
    trace = play(method="focus", clients_per_round=1, num_rounds=1, **KEYS)
    report = trace.reports[0].evaluate
    assert report is not None and len(report.rows) == 4
    other = play(
        method="focus",
        clients_per_round=1,
        num_rounds=1,
        focus_inference="largest",
        **KEYS,
    )
    assert other.reports[0].evaluate is not None
    pairs = zip(report.rows, other.reports[0].evaluate.rows, strict=True)
    assert all(mine["loss"] != theirs["loss"] for mine, theirs in pairs)


def test_resumed_is_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {**SMALL, "method": "focus", "focus-models": 3}
    short = fedsuite.run({**keys, "num-rounds": 2, "run-name": "short"})
    longer = fedsuite.resume(short.path, num_rounds=4)
    whole = fedsuite.run({**keys, "num-rounds": 4, "run-name": "whole"})
    assert final_model(longer.path) == final_model(whole.path)
    assert client_states(longer.path) == client_states(whole.path)
    found = longer.client_values("evaluate", "loss")
    assert found == whole.client_values("evaluate", "loss")
