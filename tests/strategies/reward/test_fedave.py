"""FedAVE: golden numbers, rounds by the equations, and what losses a client tells."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.reward.fedave import FedAVEClient
from fedsuite.core.errors import RunError
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies.reward.fedave import FedAVE, data_values, loss_divergence
from fedsuite.strategies.reward.reputation import reward_shares, smoothed, top_share
from fedsuite.training.loop import TrainingOptions
from tests.helpers import FULL_STEP, Matrix, MatrixLoss
from tests.strategies.reward.rewards import Judge, Samples, federate, options

SAMPLES = (
    [(0.3, -0.4, 0.1, 0.2)] * 2,
    [(0.1, 0.2, 0.2, 0.4)] * 2 + [(0.4, -0.1, 0.3, 0.2)],
    [(0.2, 0.1, 0.3, 0.1)] * 2 + [(0.3, 0.4, -0.2, 0.1)] * 2,
)
MEANS = [np.mean(rows, axis=0).tolist() for rows in SAMPLES]


def fedave(rounds: int, judge: Judge, samples: Samples = SAMPLES, **changes: Any):
    given_keys = {"fedave_loss_batch": 2, **changes}
    strategy = FedAVE(validation=judge, **options(len(samples), **given_keys))
    training = TrainingOptions(local_steps=1, batch_size=0)
    return federate(strategy, FedAVEClient, samples, rounds, training=training)


def test_golden_numbers() -> None:
    client, server = ((0.9, 0.7), (0.5, 0.5)), ((0.6, 0.8), (0.5, 0.6))
    found = [
        loss_divergence(np.array(a), np.array(b))
        for a, b in zip(client, server, strict=True)
    ]
    assert found == pytest.approx([0.036123, 0.004149], abs=1e-6)
    values = data_values(np.array(found))
    assert values == pytest.approx([0.114869, 1], abs=1e-6)
    measured = np.array([0.6, 0.8]) * values**2
    assert measured == pytest.approx([0.007917, 0.8], abs=1e-6)
    reputation = smoothed(np.array([0.5, 0.5]), measured, 0.95)
    assert reputation == pytest.approx([0.480006, 0.519994], abs=1e-6)
    shares = values * reward_shares(reputation, 2.0)
    assert shares == pytest.approx([0.109908, 1], abs=1e-6)
    total = np.array([0.15, 0.05, 0.15, 0.3])
    assert top_share(total, [4], shares[0]).tolist() == [0, 0, 0, 0.3]


def test_losses_are_cut_to_the_shorter() -> None:
    two = loss_divergence(np.array([0.9, 0.7]), np.array([0.6, 0.8]))
    assert loss_divergence(np.array([0.9, 0.7, 5.0]), np.array([0.6, 0.8])) == two
    assert loss_divergence(np.array([0.9, 0.7]), np.array([0.6, 0.8, 5.0])) == two


def test_equal_losses_are_as_near_as_can_be_told() -> None:
    same = np.array([0.3, 0.4])
    assert loss_divergence(same, 7 * same) == pytest.approx(1e-12)
    assert loss_divergence(np.zeros(2), np.zeros(2)) == 1e-12


@pytest.mark.parametrize("losses", [[0.3], [], [np.inf, 1.0], [np.nan, 1.0]])
def test_what_cannot_be_compared_is_unknown(losses: list[float]) -> None:
    assert np.isnan(loss_divergence(np.array(losses), np.array([0.3, 0.4])))


def test_an_unknown_divergence_is_the_average() -> None:
    assert data_values(np.array([0.1, np.nan, 0.3])).tolist() == pytest.approx(
        [1, 0.5, 1 / 3]
    )
    assert data_values(np.full(3, np.nan)).tolist() == [1, 1, 1]


@given(st.lists(st.floats(1e-12, 10), min_size=1, max_size=6).map(np.array))
def test_values_are_up_to_1_and_fall_with_the_divergence(divergences: np.ndarray) -> None:
    values = data_values(divergences)
    assert values.max() == 1
    assert (values > 0).all()
    assert (np.diff(values[np.argsort(divergences)]) <= 0).all()


def by_the_equations(rounds: int, judge: Judge) -> tuple[np.ndarray, list[float]]:
    """Models and reputations after some rounds, in plain loops."""
    number = range(3)
    n = np.array([len(rows) for rows in SAMPLES])
    models = [np.zeros(4) for _ in number]
    r: list[float] = []
    for t in range(rounds):
        trained = [w + 0.1 * (np.array(MEANS[k]) - w) for k, w in enumerate(models)]
        u = [b - a for a, b in zip(models, trained, strict=True)]
        u = [0.5 * d / (np.linalg.norm(d) + 1e-7) for d in u]
        total = sum(n[k] / n.sum() * u[k] for k in number)
        kl: list[float] = []
        for k in number:
            each = [0.5 * ((models[k] - np.array(x)) ** 2).sum() for x in SAMPLES[k]]
            mine = np.array([np.mean(each[i : i + 2]) for i in range(0, n[k], 2)])
            theirs = np.array(judge.batch_losses({"w": models[k]}, 2))[: len(mine)]
            p, s = mine / mine.sum(), theirs / theirs.sum()
            kl.append(float((p * np.log(p / s)).sum()) if len(mine) > 1 else np.nan)
        kl = [np.nanmean(kl) if np.isnan(x) else max(x, 1e-12) for x in kl]
        d = [min(kl) / x for x in kl]
        m = [judge.accuracy({"w": trained[k]}) * d[k] ** 2 for k in number]
        raw = [max(0.95 * r[k] + 0.05 * m[k] if r else m[k], 1e-3) for k in number]
        r = [x / sum(raw) for x in raw]
        q = [np.tanh(2 * x) for x in r]
        for k in number if t > 0 else ():
            order = sorted(range(4), key=lambda i: (-abs(total[i]), i))
            for i in order[: int(np.ceil(4 * d[k] * q[k] / max(q)))]:
                models[k][i] += total[i]
    return np.array(models), r


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_rounds_by_the_equations(rounds: int) -> None:
    found = fedave(rounds, Judge())
    models, reputation = by_the_equations(rounds, Judge())
    np.testing.assert_allclose(found.models(rounds), models, atol=1e-6)
    assert found.column("reputation", rounds) == pytest.approx(reputation, abs=1e-6)
    values = found.column("data_value", rounds)
    assert max(values) == 1
    assert min(values) < 0.9


def test_the_first_round_measures_only() -> None:
    found = fedave(1, Judge())
    assert found.models(1) == [[0, 0, 0, 0]] * 3
    assert not found.trace.arrays[0]["weight"].any()
    assert found.column("reward_share", 1) == [0, 0, 0]
    assert len(set(found.column("reputation", 1))) == 3


def test_with_values_of_1_and_endless_altruism_all_have_the_servers_model() -> None:
    """One sample a client: no sequence to compare, so D is 1."""
    found = fedave(3, Judge(), MEANS, altruism=1e7)
    assert found.column("data_value", 3) == [1, 1, 1]
    server = found.trace.arrays[2]["weight"].reshape(-1).tolist()
    assert found.models(3) == [server] * 3
    assert any(server)


def test_a_newcomers_reputation_is_its_measurement() -> None:
    """The other keeps 0.95 of what it has, which is all that the two have."""
    strategy = FedAVE(validation=Judge())
    strategy.reputation = {0: 0.5, 1: 0.5}
    found = strategy.new_shares([0, 7], np.array([0.4, 0.8]))
    assert found == pytest.approx([0.97 / 1.77, 0.8 / 1.77])


def test_the_trained_model_is_judged() -> None:
    judge = Judge(goal=(1.0, 0, 0, 0))
    found = fedave(1, judge)
    reached = [model["weight"].reshape(-1) for model in judge.seen]
    np.testing.assert_allclose(reached, 0.1 * np.array(MEANS), atol=1e-7)
    assert len(found.column("validation_accuracy", 1)) == 3


def test_losses_are_those_of_the_received_model_in_the_order_of_the_data() -> None:
    class Client(MatrixLoss, FedAVEClient):
        pass

    rows = torch.tensor([[1.0] * 4, [3.0] * 4, [5.0] * 4]).reshape(-1, 2, 2)
    data = Split(rows, torch.zeros(3, dtype=torch.int64))
    client = Client(Matrix(), data, data, training=FULL_STEP)
    received = {"weight": np.ones((2, 2), dtype=np.float32)}
    for count, losses, told in ((3, [4.0, 32.0, 0.0], 2), (1, [4.0], 1)):
        config = {"loss-batch": 2, "num-batches": count}
        reply = client.answer(Request("train", 0, {ARRAYS: received}, config))
        assert reply.arrays["losses"]["losses"].tolist() == losses
        assert reply.metrics["num-batches"] == told
        assert model_arrays(client.model)["weight"].tolist() == [[3, 3], [3, 3]]


def test_losses_need_a_loss_batch() -> None:
    with pytest.raises(ValueError, match="fedave_loss_batch = 0: expected"):
        FedAVE(validation=Judge(), fedave_loss_batch=0)


def test_clients_without_their_losses_end_the_run() -> None:
    strategy = FedAVE(validation=Judge(), **options(3, max_failed_rounds=9))
    with pytest.raises(RunError, match=r"record 'losses' is missing.*FedAVEClient, which"):
        federate(strategy, FedAvgClient, SAMPLES, 1)
