"""CGSV: golden rounds, its extremes, and what its clients train from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.strategies.reward.cgsv import CGSV
from fedsuite.training.loop import TrainingOptions
from tests.strategies.reward.rewards import Rewarded, Row, federate, options

GOLDEN = ((3.0, -4.0, 0.0, 0.0), (1.0, 2.0, 2.0, 4.0))
COUNTS = (1, 3)
OTHERS = ((0.3, -0.4, 0.1, 0.2), (0.1, 0.2, 0.2, 0.4), (-0.2, 0.1, 0.3, 0.1))


def cgsv(samples: Sequence[Row], counts: Sequence[int], rounds: int, **changes: Any):
    training = changes.pop("training", TrainingOptions(local_steps=1, batch_size=0))
    strategy = CGSV(**options(len(samples), **changes))
    return federate(
        strategy, FedAvgClient, samples, rounds, counts=counts, training=training
    )


def golden(altruism: float) -> Rewarded:
    return cgsv(GOLDEN, COUNTS, 1, altruism=altruism)


def test_golden_round() -> None:
    """Unit updates (.6, -.8, 0, 0) and (.2, .4, .4, .8), halved, weighed 1 to 3."""
    found = golden(2.0)
    assert found.column("reputation", 1) == pytest.approx([0.125, 0.875], abs=1e-6)
    assert found.column("reward_share", 1) == pytest.approx([0.260171, 1], abs=1e-6)
    own, best = found.models(1)
    assert own == pytest.approx([0.15, 0, 0, 0.3], abs=1e-6)
    assert best == pytest.approx([0.15, 0.05, 0.15, 0.3], abs=1e-6)
    server = found.trace.arrays[0]["weight"].reshape(-1)
    assert server == pytest.approx([0.15, 0.05, 0.15, 0.3], abs=1e-6)


def test_golden_round_with_less_altruism() -> None:
    found = golden(1.0)
    assert found.column("reward_share", 1) == pytest.approx([0.176661, 1], abs=1e-6)
    assert found.models(1)[0] == pytest.approx([0, 0, 0, 0.3], abs=1e-6)


def by_the_equations(
    samples: Sequence[Row], counts: Sequence[int], rounds: int, rate: float
) -> tuple[list[list[float]], list[float]]:
    """Models and reputations after some rounds, in plain loops."""
    number = range(len(samples))
    models = [np.zeros(4) for _ in number]
    r = [0.0 for _ in number]
    omega = [count / sum(counts) for count in counts]
    for _ in range(rounds):
        steps = [rate * (np.array(samples[k]) - models[k]) for k in number]
        u = [0.5 * s / (np.sqrt((s * s).sum()) + 1e-7) for s in steps]
        total = sum(omega[k] * u[k] for k in number)
        cos = [(a * total).sum() / np.sqrt((a * a).sum() * (total**2).sum()) for a in u]
        r = [max(0.95 * r[k] + 0.05 * cos[k], 1e-3) for k in number]
        r = [value / sum(r) for value in r]
        q = [np.tanh(2 * value) for value in r]
        for k in number:
            order = sorted(range(4), key=lambda i: (-abs(total[i]), i))
            for i in order[: int(np.ceil(4 * q[k] / max(q)))]:
                models[k][i] += total[i]
        omega = r
    return [model.tolist() for model in models], r


@pytest.mark.parametrize("rounds", [2, 5])
def test_later_rounds_go_on_from_rewards_and_weigh_by_reputation(rounds: int) -> None:
    found = cgsv(OTHERS, (1, 2, 3), rounds)
    models, reputation = by_the_equations(OTHERS, (1, 2, 3), rounds, 0.1)
    np.testing.assert_allclose(found.models(rounds), models, atol=1e-6)
    assert found.column("reputation", rounds) == pytest.approx(reputation, abs=1e-6)
    assert len({tuple(model) for model in models}) > 1


def test_endless_altruism_is_averaging_of_unit_updates() -> None:
    """All clients have the server's model, in every round."""
    found = cgsv(OTHERS, (1, 2, 3), 3, altruism=1e7)
    for server_round in (1, 2, 3):
        server = found.trace.arrays[server_round - 1]["weight"].reshape(-1).tolist()
        assert found.models(server_round) == [server] * 3


def test_equal_clients_are_fedavg_with_steps_of_a_length() -> None:
    found = cgsv([(3.0, 0.0, 4.0, 0.0)] * 3, (1, 1, 1), 1, update_length=5.0)
    assert found.column("reputation", 1) == pytest.approx([1 / 3] * 3)
    assert found.models(1) == pytest.approx(np.array([[3, 0, 4, 0]] * 3), abs=1e-5)


def test_a_client_against_the_others_gets_least() -> None:
    samples = ((1.0, 1, 1, 1), (1.0, 1.1, 0.9, 1), (-1.0, -1, -1, 0.5))
    found = cgsv(samples, (1, 1, 1), 4)
    reputation = found.column("reputation", 4)
    assert reputation[2] == min(reputation) < 0.01
    shares = found.column("reward_share", 4)
    assert shares[2] < 0.1 < min(shares[:2])


def test_a_client_that_learns_nothing_does_no_harm() -> None:
    found = cgsv(((0.0, 0, 0, 0), (1.0, 1, 1, 1)), (1, 1), 2)
    assert np.isfinite(found.models(2)).all()
    reputation = found.column("reputation", 2)
    assert reputation[0] < 0.05 < reputation[1]
    assert np.count_nonzero(found.models(1)[0]) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("update_length", 0.0),
        ("reputation_memory", 1.5),
        ("altruism", 0.0),
        ("altruism", float("inf")),
    ],
)
def test_bad_numbers_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} = {value}: expected"):
        CGSV(**{name: value})
