"""Planned lies: who lies, what is sent, and that nobody lying changes no bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import numpy_stream
from fedsuite.data import Split
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import (
    ARRAYS,
    CONTROL_CHANGE,
    EVALUATE,
    LOSS_AFTER,
    LOSSES,
    NUM_EXAMPLES,
    PROBE,
    TRAIN,
    Reply,
    Request,
)
from fedsuite.running.collusion import forged
from fedsuite.training.attack_plan import (
    AttackPlan,
    LyingClient,
    alie_deviations,
    canary_direction,
    flipped,
)
from tests.helpers import digits_experiment, final_bits, run_digits

ATTACKS = ("sign-flip", "scale", "canary", "alie", "ipm", "label-flip")
ATTACKS += ("lie-examples", "lie-loss")

HONEST = [{"w": np.array(x)} for x in ([1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [2.0, 1.0])]
"""Updates of four honest clients: mean (1.5, 0.5), deviation (0.5, 0.5)."""


# The plan


def test_liars_are_the_first_of_the_seeds_order() -> None:
    order = numpy_stream(7, "attackers").permutation(10).tolist()
    for share, count in ((0.0, 0), (0.2, 2), (0.25, 3), (1.0, 10)):
        plan = AttackPlan(attack="scale", attackers=share, seed=7, num_clients=10)
        assert plan.liars() == set(order[:count])
    assert not AttackPlan(attack="none", seed=7, num_clients=10).liars()


def test_canaries_are_the_last_clients() -> None:
    plan = AttackPlan(attack="canary", attackers=0.3, seed=7, num_clients=10)
    assert plan.liars() == {7, 8, 9}
    assert plan.num_canaries == 3
    assert AttackPlan(attack="scale", attackers=0.3, num_clients=10).num_canaries == 0


@given(st.integers(0, 99), st.floats(0.1, 1), st.floats(0.1, 1), st.integers(5, 40))
def test_a_larger_share_adds_liars(seed: int, one: float, other: float, n: int) -> None:
    few, many = (
        AttackPlan(attack="ipm", attackers=share, seed=seed, num_clients=n).liars()
        for share in sorted([one, other])
    )
    assert few <= many


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"attack": "liar"}, r"key attack = 'liar': .*expected one of none, sign-flip"),
        ({"attack": "scale", "attackers": 1.5}, r"key attackers = 1\.5"),
        (
            {"attack": "scale", "attackers": 0.01},
            r"= 10: that is nobody; give 0\.05",
        ),
        ({"attackers": 0.3}, "key attackers = 0.3 has no effect with attack = 'none'"),
        ({"attack": "label-flip", "attack-strength": 2.0}, "key attack-strength = 2.0 has"),
        ({"attack": "scale", "attack-strength": 0.0}, "key attack-strength = 0.0"),
        ({"attack": "scale", "sites": "a, b, c"}, "attack = 'scale' cannot go with sites"),
        (
            {"attack": "scale", "method": "standalone"},
            "attack = 'scale' has no effect with",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Experiment.from_values(values)
    assert "\n" not in str(caught.value)


# What is sent


MODEL = {"w": np.array([1.0, 2.0], np.float32), "running_var": np.ones(1, np.float32)}
TRAINED = {"w": np.array([2.0, 0.0], np.float32), "running_var": np.ones(1, np.float32) * 2}
CONTROLS = {"w": np.array([0.5, 0.25], np.float32)}
METRICS = {NUM_EXAMPLES: 7, "loss": 0.5, LOSS_AFTER: 0.25, "accuracy": 0.75}


class Honest:
    def answer(self, request: Request) -> Reply:
        losses = {"losses": np.array([0.5, 0.0])}
        arrays = {ARRAYS: TRAINED, CONTROL_CHANGE: CONTROLS, LOSSES: losses}
        return Reply(arrays, METRICS)


def said(message_type: str = TRAIN, **keys: Any) -> Reply:
    plan = AttackPlan(num_clients=5, **keys)
    client = LyingClient(Honest(), plan, {ARRAYS})
    return client.answer(Request(message_type, 0, {ARRAYS: MODEL}))


@pytest.mark.parametrize(
    ("keys", "model", "controls"),
    [
        ({"attack": "sign-flip"}, [0.0, 4.0], [-0.5, -0.25]),
        ({"attack": "sign-flip", "attack_strength": 2.0}, [-1.0, 6.0], [-1.0, -0.5]),
        ({"attack": "scale"}, [11.0, -18.0], [5.0, 2.5]),
        ({"attack": "scale", "attack_strength": 1.0}, [2.0, 0.0], [0.5, 0.25]),
    ],
)
def test_updates_are_multiplied(
    keys: dict[str, Any], model: list[float], controls: list[float]
) -> None:
    reply = said(**keys)
    assert reply.arrays[ARRAYS]["w"].tolist() == model
    assert reply.arrays[ARRAYS]["w"].dtype == np.float32
    assert reply.arrays[ARRAYS]["running_var"].tolist() == [2.0]
    assert reply.arrays[CONTROL_CHANGE]["w"].tolist() == controls
    assert reply.metrics == METRICS


def test_a_canary_sends_its_direction() -> None:
    reply = said(attack="canary", attack_strength=5.0, seed=4)
    direction = canary_direction(4, 0, TRAINED)
    assert list(direction) == ["w"]
    sent = reply.arrays[ARRAYS]["w"] - MODEL["w"]
    np.testing.assert_allclose(sent, 5 * direction["w"], rtol=1e-6)
    assert np.linalg.norm(sent) == pytest.approx(5.0)
    assert reply.arrays[ARRAYS]["w"].dtype == np.float32
    assert reply.arrays[ARRAYS]["running_var"].tolist() == [2.0]
    assert reply.metrics == METRICS
    other = said(attack="canary", attack_strength=5.0, seed=5)
    assert other.arrays[ARRAYS]["w"].tolist() != reply.arrays[ARRAYS]["w"].tolist()


def test_claims() -> None:
    examples, loss = said(attack="lie-examples"), said(attack="lie-loss")
    assert examples.metrics == {**METRICS, NUM_EXAMPLES: 1_000_000}
    assert loss.metrics == {**METRICS, "loss": 10.0, LOSS_AFTER: 10.0}
    assert loss.arrays[LOSSES]["losses"].tolist() == [10.0, 0.0]
    assert loss.arrays[ARRAYS] == examples.arrays[ARRAYS] == TRAINED


def test_queries_are_lied_to_and_evaluations_are_not() -> None:
    assert said(PROBE, attack="lie-examples").metrics != METRICS
    for attack in ATTACKS:
        assert said(EVALUATE, attack=attack).metrics == METRICS


def test_labels_are_mirrored() -> None:
    split = flipped(Split(torch.zeros(3, 1), torch.tensor([0, 4, 9])), 10)
    assert split.labels.tolist() == [9, 5, 0]


# What colluders send


def golden(of_mean: float, of_deviation: float, start: float = 0.0) -> list[float]:
    record = {"w": np.zeros(2, np.float32), "count": np.array([3])}
    origin = {"w": np.full(2, start, np.float32)}
    made = forged(record, origin, HONEST, of_mean, of_deviation)
    assert made["count"].tolist() == [3]
    assert made["w"].dtype == np.float32
    found: list[float] = made["w"].tolist()
    return found


def test_golden_lies_of_colluders() -> None:
    assert golden(-0.5, 0.0) == [-0.75, -0.25]
    assert golden(-2.0, 0.0) == [-3.0, -1.0]
    assert golden(1.0, -1.5) == [0.75, -0.25]
    assert golden(1.0, -1.0, start=10.0) == [11.0, 10.0]


def test_colluders_without_honest_clients_or_with_other_shapes_send_their_own() -> None:
    record = {"w": np.array([5.0])}
    assert forged(record, {}, [], -2.0, 0.0) == record
    assert forged(record, {}, HONEST, -2.0, 0.0) == record


@pytest.mark.parametrize(
    ("n", "f", "z"), [(50, 24, 1.4261), (50, 12, 0.3360), (20, 4, 0.1573), (10, 2, 0.0)]
)
def test_golden_deviations(n: int, f: int, z: float) -> None:
    assert alie_deviations(n, f) == pytest.approx(z, abs=5e-5)
    plan = AttackPlan(attack="alie", num_clients=n)
    assert plan.deviations(n, f) == 1.5
    assert plan.deviations(1000, 480) == pytest.approx(1.7456, abs=1e-3)


@given(st.integers(0, 60), st.integers(0, 60))
def test_deviations_are_finite_and_not_negative(n: int, f: int) -> None:
    assert 0.0 <= alie_deviations(n, min(f, n)) < 10.0


# Runs

SMALL: dict[str, Any] = {"num_clients": 5, "num_rounds": 2, "seed": 3, "workers": 1}


def run_on(folder: Path, engine: Any, nodes: int, **changes: Any) -> tuple[bytes, str]:
    experiment = digits_experiment(**{**SMALL, **changes})
    values = {**experiment.values, "output-dir": str(folder)}
    values["run-name"] = f"{engine}-{nodes}-{len(list(folder.iterdir()))}"
    path = fedsuite.run(values, engine=engine, num_supernodes=nodes).path
    return (path / "model.safetensors").read_bytes(), (path / "clients.jsonl").read_text()


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedeba-plus"])
def test_no_attackers_change_no_bit(method: str) -> None:
    honest = final_bits(method=method, **SMALL)
    assert honest == final_bits(method=method, attack="scale", attackers=0.0, **SMALL)
    assert honest != final_bits(method=method, attack="scale", **SMALL)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """What all clients leave where none of them lies."""
    return run_on(tmp_path_factory.mktemp("honest"), "local", 0, max_examples="off")


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_does_not_depend_on_the_number_of_nodes(
    attack: str, honest: tuple[bytes, str], tmp_path: Path
) -> None:
    believed = {"max_examples": "off"}
    whole = run_on(tmp_path, "local", 0, attack=attack, **believed)
    assert whole != honest
    assert run_on(tmp_path, "local", 2, attack=attack, **believed) == whole
    if attack in ("alie", "ipm"):
        nobody = {"attack": attack, "attackers": 0.0, **believed}
        assert run_on(tmp_path, "local", 0, **nobody) == honest


def test_colluders_move_the_mean_as_computed_by_hand(tmp_path: Path) -> None:
    """FedAvg of four, one of them with ipm: 3/4 mean - 1/4 x 2 mean = mean / 4."""
    keys: dict[str, Any] = {"num_clients": 4, "num_rounds": 1, "optimizer": "sgd"}
    moved = {"learning_rate": 0.1, **keys}
    (liar,) = AttackPlan(attack="ipm", seed=3, num_clients=4).liars()
    honest = run_digits(
        digits_experiment(**{**SMALL, **moved}),
        tamper=lambda replies: [r for k, r in enumerate(replies) if k != liar],
    )
    assert {row["client"] for row in honest.reports[0].train.rows} == {0, 1, 2, 3} - {liar}
    start = load(run_on(tmp_path, "local", 0, **keys, learning_rate=1e-300)[0])
    for name, array in load(run_on(tmp_path, "local", 0, attack="ipm", **moved)[0]).items():
        step = honest.arrays[0][name] - start[name]
        # Clients have 359 or 360 rows.
        np.testing.assert_allclose(array, start[name] + step / 4, atol=1e-3)
        assert np.abs(step).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["scale", "alie"])
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_an_attack_does_not_depend_on_the_engine(
    engine: str, attack: str, tmp_path: Path
) -> None:
    assert run_on(tmp_path, engine, 2, attack=attack) == run_on(
        tmp_path, "local", 0, attack=attack
    )
