"""Ditto: golden rounds, FedAvg's global model bit for bit, and what is scored."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.personal.ditto import DittoClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.personal.ditto import Ditto
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import Trace, bits, digits_experiment, run_digits
from tests.strategies.drift.corrected import (
    M4,
    Federation,
    options,
    run_curves,
    seed_that_draws,
)

WORK = {
    "ditto-lambda": 1.0,
    "ditto-local-epochs": 0,
    "ditto-local-steps": 0,
    "ditto-learning-rate": 0.0,
}


def ditto(num_rounds: int, num_clients: int = 2, **changes: Any) -> Federation:
    run = {"curves": M4[:num_clients]}
    for name in ("counts", "num_nodes", "local_steps", "learning_rate_decay"):
        run |= {name: changes.pop(name)} if name in changes else {}
    keywords = {"ditto_lambda": 0.5, **options(num_clients), **changes}
    return run_curves(Ditto(**keywords), DittoClient, num_rounds, **run)


def test_golden_rounds() -> None:
    """Round 1 by hand: 0.1, then 0.1 + 0.1 (0.9 - 0.5 x 0.1); w is FedAvg's."""
    one, two = ditto(1), ditto(2)
    assert one.vector("x", 2) == pytest.approx([0.185, -0.35])
    assert two.vector("x", 2) == pytest.approx([0.3108, -0.554313], abs=1e-6)
    assert two.models == pytest.approx([-0.085, -0.146625])


def test_mean_is_weighted_by_examples() -> None:
    assert ditto(1, counts=(3, 1)).models == pytest.approx([0.75 * 0.19 - 0.25 * 0.36])


def test_only_clients_of_the_round_move_their_model() -> None:
    found = ditto(1, 4, clients_per_round=2, seed=seed_that_draws([0, 1]))
    assert set(found.strategy.client_versions) == {0, 1}


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ({"ditto_local_steps": 1}, 0.1),
        ({"ditto_local_epochs": 3}, 0.185 + 0.1 * (0.815 - 0.5 * 0.185)),
        ({"ditto_learning_rate": 0.2}, 0.2 + 0.2 * (0.8 - 0.1)),
    ],
)
def test_work_on_the_personal_model(work: dict[str, Any], expected: float) -> None:
    found = ditto(1, **work)
    assert found.kept(0)["x"] == pytest.approx(expected)
    assert found.models == pytest.approx([-0.085])


def test_personal_rate_decays_too() -> None:
    found = ditto(2, ditto_learning_rate=0.2, learning_rate_decay=0.5, local_steps=1)
    w = found.models[0]
    assert found.kept(0)["x"] == pytest.approx(0.2 + 0.1 * (0.8 - 0.5 * (0.2 - w)))


def test_lambda_0_is_training_alone() -> None:
    unbounded = {k: v for k, v in options(4).items() if k != "max_update_norm"}
    alone = run_curves(Standalone(**unbounded), StandaloneClient, 3, curves=M4)
    assert ditto(3, 4, ditto_lambda=0.0).vector("x", 4) == alone.vector("x", 4)


def test_huge_lambda_ends_at_the_received_model() -> None:
    """With rate x lambda = 1 the last step lands on w_t, but for one step's gradient."""
    found = ditto(3, ditto_lambda=1e4, ditto_learning_rate=1e-4)
    assert found.vector("x", 2) == pytest.approx([found.models[1]] * 2, abs=1e-3)


def digits(method: str, **changes: Any) -> tuple[Trace, MemoryStore]:
    store = MemoryStore()
    experiment = digits_experiment(
        method=method, clients_per_round=2, batch_size=16, **changes
    )
    return run_digits(experiment, store), store


def test_global_model_is_fedavgs_bit_for_bit_whatever_lambda() -> None:
    plain, _ = digits("fedavg")
    for changes in ({}, {"ditto_lambda": 0.0}, {"ditto_local_epochs": 3}):
        trace, _ = digits("ditto", **changes)
        for mine, theirs in zip(trace.arrays, plain.arrays, strict=True):
            assert bits(mine) == bits(theirs)


def test_scores_are_of_the_personal_model_and_beside_it_of_the_global_one() -> None:
    plain, _ = digits("fedavg")
    trace, _ = digits("ditto")
    asked: set[int] = set()
    initial = None
    for mine, theirs in zip(trace.reports, plain.reports, strict=True):
        assert mine.train is not None and mine.evaluate is not None
        assert theirs.evaluate is not None
        asked |= {int(row["client"]) for row in mine.train.rows}
        for own, shared in zip(mine.evaluate.rows, theirs.evaluate.rows, strict=True):
            assert own["global_loss"] == shared["loss"]
            assert own["global_accuracy"] == shared["accuracy"]
            assert own["loss"] != shared["loss"]
        never = {
            int(row["client"]): row["loss"]
            for row in mine.evaluate.rows
            if row["client"] not in asked
        }
        # A client that was never sampled is scored with the initial model, unchanged.
        initial = never if initial is None else initial
        assert never.items() <= initial.items()
    assert initial


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(features))
        return out


def client_of(model: nn.Module, store: MemoryStore) -> DittoClient:
    features = torch.arange(8.0).reshape(4, 2)
    data = Split(features, torch.tensor([0, 1, 0, 1]))
    work = TrainingOptions(local_steps=2, batch_size=0)
    return DittoClient(model, data, data, training=work, store=store)


def test_personal_buffers_are_its_own_and_the_model_is_the_global_one_afterwards() -> None:
    store, model = MemoryStore(), Normalised()
    client = client_of(model, store)
    shared = model_arrays(model)
    far = {**shared, "norm.running_mean": np.full(2, 50.0, dtype=np.float32)}
    reply = client.answer(Request("train", 0, {ARRAYS: far}, WORK, new_version="1.1"))
    left = model_arrays(model)
    assert bits(left) == bits(dict(reply.arrays[ARRAYS]))
    own = store.load(0, "1.1")
    assert set(own) == set(shared)
    # Two steps: the global statistics come from 50, the personal ones from 0.
    assert reply.arrays[ARRAYS]["norm.running_mean"].min() > 40
    assert own["norm.running_mean"].max() < 2
    assert own["norm.num_batches_tracked"] == 2
    client.answer(Request("evaluate", 0, {ARRAYS: far}, {}, start_version="1.1"))
    assert bits(model_arrays(model)) == bits(far)


def test_personal_mini_batches_are_its_own() -> None:
    """From the same start, with lambda 0, the same ones would give the same model."""
    store = MemoryStore()
    client = client_of(Normalised(), store)
    client.training = TrainingOptions(local_steps=2, batch_size=2)
    request = Request(
        "train",
        0,
        {ARRAYS: model_arrays(client.model)},
        {**WORK, "ditto-lambda": 0.0},
        new_version="1.1",
    )
    reply = client.answer(request)
    assert bits(store.load(0, "1.1")) != bits(dict(reply.arrays[ARRAYS]))


def test_a_message_with_a_part_of_the_model_holds_the_anchor_for_the_rest_too() -> None:
    """The rest of w_t is what the model holds when the message comes."""
    store, model = MemoryStore(), Normalised()
    client = client_of(model, store)
    part = {"norm.weight": np.full(2, 3.0, dtype=np.float32)}
    config = {**WORK, "ditto-lambda": 10.0, "ditto-learning-rate": 0.1}
    reply = client.answer(Request("train", 0, {ARRAYS: part}, config, new_version="1.1"))
    assert set(reply.arrays[ARRAYS]) == {"norm.weight"}
    own = store.load(0, "1.1")
    # One step of rate x lambda = 1 lands on the anchor, but for a gradient's tenth.
    np.testing.assert_allclose(own["norm.weight"], 3.0, atol=0.3)


def test_a_client_without_lambda_says_so() -> None:
    found = run_curves(FedAvg(**options()), DittoClient, 1)
    assert found.trace.reports[0].train is not None
    reason = found.trace.reports[0].train.rejections[0].reason
    assert (
        "the message has no number ditto-local-epochs: use the strategy that belongs"
        in reason
    )
