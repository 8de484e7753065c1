"""lp-proj: golden steps, Standalone bit for bit, bounds of the reference, false replies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedsuite
from fedsuite.clients.personal import lp_proj
from fedsuite.clients.personal.lp_proj import LpProjClient, projection
from fedsuite.data import Split
from fedsuite.messages.records import REFERENCE, UPDATE, Request
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.personal.lp_proj import LpProj
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import aggregated, play
from tests.small_runs import SMALL, client_states

GRADIENT = torch.tensor([0.1, 0.0, -0.1])
ROWS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])


class Slope(nn.Module):
    """Three numbers."""

    def __init__(self, start: tuple[float, ...]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start))


class SlopeClient(LpProjClient):
    scale = 1.0

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.scale * (GRADIENT * model.x).sum()
        return loss


def trained(
    p: int = 1,
    *,
    pull: float = 0.5,
    steps: int = 1,
    inner: int = 1,
    start: tuple[float, ...] = (1.0, 2.0, 0.0),
    reference: tuple[float, ...] = (0.0, 1.5),
    scale: float = 1.0,
) -> tuple[list[float], list[float]]:
    """Return theta and u after a training with steps of 0.1."""
    data = Split(torch.zeros(1, 1), torch.zeros(1).long())
    store = MemoryStore()
    options = TrainingOptions(local_steps=steps, learning_rate=0.1)
    client = SlopeClient(Slope(start), data, data, training=options, store=store)
    client.scale = scale
    told = {
        "server-round": 1,
        "lp-proj-p": p,
        "lp-proj-lambda": pull,
        "lp-proj-inner-steps": inner,
        "lp-proj-learning-rate": 0.1,
    }
    u = np.array(reference, dtype=np.float32)
    arrays = {REFERENCE: {REFERENCE: u}}
    reply = client.answer(Request("train", 0, arrays, told, new_version="new"))
    kept = store.load(0, "new")["x"].tolist()
    return kept, (u + reply.arrays[UPDATE][REFERENCE]).tolist()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lp_proj, "projection", lambda *_: ROWS)


@pytest.mark.parametrize(
    ("p", "theta", "u"),
    [
        (1, [0.94, 2.03, 0.05], [0.05, 1.45]),
        # The authors' other class would give u = (0.047961, 1.485867).
        (2, [0.94, 2.009, 0.022], [0.047, 1.48615]),
    ],
)
def test_golden_steps(p: int, theta: list[float], u: list[float], by_hand: None) -> None:
    found = trained(p)
    assert found[0] == pytest.approx(theta, abs=1e-6)
    assert found[1] == pytest.approx(u, abs=1e-6)


def test_the_reference_follows_after_j_steps_and_after_the_last(by_hand: None) -> None:
    """Signs do not change here: u moves by 0.05 each time."""
    moves = {3: 0.05, 4: 0.05, 6: 0.1, 8: 0.1, 9: 0.15}
    for steps, moved in moves.items():
        u = trained(steps=steps, inner=4, start=(5.0, 9.0, 9.0))[1]
        assert u == pytest.approx([moved, 1.5 + moved])


def test_a_model_on_its_projection_without_gradient_stays(by_hand: None) -> None:
    for p in (1, 2):
        start, u = (0.5, 0.0, 1.25), (0.5, 1.0)
        found = trained(p, start=start, reference=u, scale=0.0, steps=5)
        assert (found[0], found[1]) == (list(start), list(u))


def test_only_the_losss_gradient_is_clipped(by_hand: None) -> None:
    """Of length 60: 6 along the slope's direction, and the pull is whole."""
    far = trained(scale=1e4)[0]
    half = 6 / 2**0.5
    expected = [1 - half - 0.05, 2.0 + 0.03, half + 0.04]
    assert far == pytest.approx(expected, abs=1e-4)


def test_rows_have_length_1_and_are_the_same_for_all() -> None:
    rows = projection(3, 4, 50)
    projection.cache_clear()
    assert torch.equal(rows, projection(3, 4, 50))
    assert rows.square().sum(dim=1).tolist() == pytest.approx([1.0] * 4)
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows, projection(4, 4, 50))


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(*[st.floats(-20, 20)] * 3),
    st.integers(1, 3),
    st.integers(1, 7),
    st.floats(0.0, 30.0),
)
def test_signs_move_a_coordinate_by_a_bounded_amount(
    start: tuple[float, ...], inner: int, steps: int, pull: float
) -> None:
    u = trained(pull=pull, start=start, inner=inner, steps=steps)[1]
    bound = 0.1 * pull * -(-steps // inner)
    assert np.abs(np.subtract(u, [0.0, 1.5])).max() <= bound + 1e-4


def server(*updates: tuple[float, float], **keys: Any) -> list[float]:
    """Return u from (1, 1) after the clients' updates and examples."""
    strategy = LpProj(lp_proj_dimensions=2, **keys)
    strategy.reference = {REFERENCE: np.ones(2, np.float32)}
    replies = (
        ClientReply(k, {UPDATE: {REFERENCE: np.array([x, 0], np.float32)}}, {}, n)
        for k, (x, n) in enumerate(updates)
    )
    assert aggregated(strategy, {}, replies) is None
    found: list[float] = strategy.reference[REFERENCE].tolist()
    return found


def test_golden_mean() -> None:
    assert server((1.0, 9.0), (3.0, 1.0)) == [3.0, 1.0]
    assert server((1.0, 9.0), (3.0, 1.0), server_learning_rate=0.5) == [2.0, 1.0]
    # Clients without examples do not count.
    assert server((1.0, 9.0), (3.0, 0.0)) == [2.0, 1.0]


def test_without_pull_it_is_training_alone() -> None:
    rows = []
    keys: dict[str, Any] = {"local_epochs": 1, "model": "mlp", "hidden_width": 16}
    for own in (
        {"method": "standalone"},
        {"method": "lp-proj", "lp_proj_lambda": 0.0},
        {"method": "lp-proj"},
    ):
        report = play(**own, **keys).reports[-1].evaluate
        assert report is not None
        rows.append([row["loss"] for row in report.rows])
    assert rows[0] == rows[1] != rows[2]


def test_resumed_is_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {**SMALL, "method": "lp-proj", "local-steps": 5}
    short = fedsuite.run({**keys, "num-rounds": 2, "run-name": "short"})
    longer = fedsuite.resume(short.path, num_rounds=4)
    whole = fedsuite.run({**keys, "num-rounds": 4, "run-name": "whole"})
    assert client_states(longer.path) == client_states(whole.path)
    found = longer.client_values("evaluate", "loss")
    assert found == whole.client_values("evaluate", "loss")


def test_a_pull_that_diverges_is_refused() -> None:
    with pytest.raises(ValueError, match="lower one of them"):
        LpProj(lp_proj_p=2, lp_proj_lambda=30.0, lp_proj_learning_rate=0.1)
    LpProj(lp_proj_p=1, lp_proj_lambda=30.0, lp_proj_learning_rate=0.1)


@pytest.mark.parametrize(
    "lie",
    [np.full(10, np.inf), np.full(10, np.nan), np.zeros(9), np.full(10, 1e30)],
    ids=["infinite", "none", "short", "long"],
)
def test_a_false_update_moves_little(lie: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LpProjClient.on_train

    def lying(client: LpProjClient, request: Request) -> Any:
        reply = honest(client, request)
        if client.client_id == 0:
            reply.arrays[UPDATE][REFERENCE] = lie.astype(np.float32)
        return reply

    seen: list[LpProj] = []
    aggregate = LpProj.aggregate

    def watched(self: LpProj, *given: Any) -> None:
        seen.append(self)
        aggregate(self, *given)

    monkeypatch.setattr(LpProjClient, "on_train", lying)
    monkeypatch.setattr(LpProj, "aggregate", watched)
    play(method="lp-proj", num_rounds=1)
    assert np.abs(seen[0].reference[REFERENCE]).max() < 20
