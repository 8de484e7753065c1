"""The server's optimiser: numbers by hand, beside Flower's own strategies, and FedAvg."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import Arrays
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.server_optimizer import ServerOptimizer
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import FULL_STEP, TamperingGrid, final_bits, matrix_app, run

STEP = np.array([0.025, 0.1])
SECOND = np.array([0.05, 0.0])


def optimizer(**keys: Any) -> ServerOptimizer:
    return ServerOptimizer(RoundSettings(**keys))


def momentum(factor: float) -> ServerOptimizer:
    return optimizer(server_momentum=factor)


def scalar(value: float) -> Arrays:
    return {"w": np.array([value], np.float32)}


def moved(server: ServerOptimizer, old: Arrays, new: Arrays) -> Arrays:
    arrays = server.step(old, new)
    server.counted()
    return arrays


def steps_of(server: ServerOptimizer, *steps: np.ndarray) -> list[np.ndarray]:
    """Return what each step of a method becomes; each starts at 0."""
    zero = np.zeros_like(steps[0])
    return [moved(server, {"w": zero}, {"w": step})["w"] for step in steps]


# ---- momentum


def test_momentum_by_hand() -> None:
    """Steps 1, 1, -2 at beta 0.5 make velocities 1, 1.5, -1.25."""
    server = momentum(0.5)
    x = scalar(10.0)
    seen = []
    for step in (1.0, 1.0, -2.0):
        x = moved(server, x, {"w": x["w"] + np.float32(step)})
        seen.append(float(x["w"][0]))
    assert seen == [11.0, 12.5, 11.25]


def test_a_step_that_does_not_count_leaves_no_velocity() -> None:
    server = momentum(0.5)
    server.step(scalar(0.0), scalar(np.inf))
    assert server.moments == {}
    moved(server, scalar(0.0), scalar(1.0))
    np.testing.assert_array_equal(server.moments["w"].mean, [1.0])


@given(
    st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_momentum_sums_geometrically(steps: list[float], factor: float) -> None:
    server = momentum(factor)
    x = {"w": np.zeros(1)}
    for step in steps:
        x = moved(server, x, {"w": x["w"] + step})
    age = range(len(steps))
    expected = sum(
        s * sum(factor**k for k in range(len(steps) - t))
        for t, s in zip(age, steps, strict=True)
    )
    np.testing.assert_allclose(x["w"][0], expected, atol=1e-9)


def test_momentum_leaves_statistics_to_the_method() -> None:
    server = momentum(0.9)
    old = {
        "norm.weight": np.ones(2, np.float32),
        "norm.running_var": np.ones(2, np.float32),
        "norm.num_batches_tracked": np.array(3),
    }
    new = {name: array * 2 for name, array in old.items()}
    once = moved(server, old, new)
    twice = moved(server, once, {name: array * 2 for name, array in once.items()})
    np.testing.assert_array_equal(twice["norm.running_var"], [4, 4])
    assert twice["norm.num_batches_tracked"] == 12
    assert twice["norm.num_batches_tracked"].dtype == old["norm.num_batches_tracked"].dtype
    # 2 + (2 + 0.9 * 1)
    np.testing.assert_allclose(twice["norm.weight"], [4.9, 4.9], rtol=1e-6)
    assert is_statistic("0.running_mean", np.zeros(1)) and not is_statistic(
        "running", np.zeros(1)
    )


@pytest.mark.parametrize("factor", [-0.1, 1.1, float("nan")])
def test_momentum_outside_its_range_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"server_momentum = .*expected a number >= 0"):
        momentum(factor)


def test_golden_momentum() -> None:
    """(1 + 1.9) s after two steps s; Nesterov's first step is 1.9 s."""
    np.testing.assert_allclose(sum(steps_of(momentum(0.9), STEP, STEP)), [0.0725, 0.29])
    server = optimizer(server_optimizer="nesterov", server_momentum=0.9)
    np.testing.assert_allclose(steps_of(server, STEP), [[0.0475, 0.19]])


# ---- adaptive steps


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("adam", (0.071429, 0.090909), (0.110106, 0.082193)),
        ("yogi", (0.071429, 0.090909), (0.110012, 0.081818)),
        ("adagrad", (0.096154, 0.099010), None),
    ],
)
def test_golden_steps(rule: str, first: Any, second: Any) -> None:
    """Adam's first by hand: 0.1 * 0.1 * 0.025 / (0.1 * 0.025 + 0.001) = 0.25 / 3.5."""
    server = optimizer(server_optimizer=rule)
    found = steps_of(server, STEP, SECOND)
    np.testing.assert_allclose(found[0], first, atol=5e-7)
    if second:
        np.testing.assert_allclose(found[1], second, atol=5e-7)
        np.testing.assert_allclose(server.moments["w"].mean, [0.00725, 0.009])


@pytest.mark.parametrize("value, expected", [(0.025, 0.25 / 3.5), (0.1, 1 / 11)])
def test_golden_round(value: float, expected: float) -> None:
    """Two equal clients step to their samples' value, and the server takes Adam's step."""
    app = matrix_app(values=[value, value], counts=[1, 1], training=FULL_STEP)
    strategy = FedAvg(fraction_evaluate=0.0, server_optimizer="adam")
    [weight] = run(strategy, TamperingGrid(app, 2)).weights
    assert weight == pytest.approx(expected)


def flower_reply(arrays: Arrays) -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord({n: Array(a) for n, a in arrays.items()}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, dst_node_id=1, message_type="train")


def flowers(kind: type[flower.FedAdam], *models: Arrays) -> list[Arrays]:
    """Return what one of Flower's strategies makes of rounds with one client each."""
    theirs: Any = kind(eta=0.1)
    theirs.current_arrays = {name: np.zeros_like(a) for name, a in models[0].items()}
    made = []
    for server_round, model in enumerate(models, start=1):
        with flower_identity():
            record, _ = theirs.aggregate_train(server_round, [flower_reply(model)])
        made.append({name: array.numpy() for name, array in record.items()})
        theirs.current_arrays = made[-1]
    return made


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (flower.FedAdam, "adam"),
        (flower.FedYogi, "yogi"),
        (flower.FedAdagrad, "adagrad"),
    ],
)
def test_two_rounds_are_flowers(kind: Any, rule: str) -> None:
    """Flower's FedAdam alone corrects eta, by the round's number plus one; we do not."""
    rounds = [{"w": STEP}, {"w": STEP + SECOND}]
    arrays, earlier = {"w": np.zeros(2)}, {"w": np.zeros(2)}
    memory: dict[str, Any] = {}
    for server_round, theirs in enumerate(flowers(kind, *rounds), start=1):
        age = server_round + 1
        corrected = np.sqrt(1 - 0.99**age) / (1 - 0.9**age) if rule == "adam" else 1.0
        server = optimizer(
            server_optimizer=rule, server_adaptive_rate=float(0.1 * corrected)
        )
        server.restore(memory or server.state())
        earlier = moved(server, arrays, rounds[server_round - 1])
        np.testing.assert_allclose(earlier["w"], theirs["w"], rtol=1e-6)
        arrays, memory = earlier, server.state()


def test_adam_with_a_huge_tau_is_the_methods_step() -> None:
    server = optimizer(
        server_optimizer="adam", server_beta1=0.0, server_tau=1e9, server_adaptive_rate=1e9
    )
    np.testing.assert_allclose(steps_of(server, STEP, SECOND), [STEP, SECOND], rtol=1e-6)


def test_sgd_without_momentum_is_fedavg_bit_for_bit() -> None:
    named = final_bits(server_optimizer="sgd", server_momentum=0.0)
    assert named == final_bits()
    assert named != final_bits(server_optimizer="adam")


@given(
    st.sampled_from(["adam", "yogi", "adagrad"]),
    st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_squares_never_turn_negative(rule: str, steps: list[float], beta: float) -> None:
    keys = {"server_beta2": beta} if rule != "adagrad" else {}
    server = optimizer(server_optimizer=rule, **keys)
    for step in steps_of(server, *(np.array([s]) for s in steps)):
        assert np.isfinite(step).all()
    assert (server.moments["w"].square >= 0).all()


@given(st.floats(0.01, 8), st.floats(0.01, 8))
def test_the_first_adagrad_step_forgets_lengths(one: float, other: float) -> None:
    """At a small tau every parameter moves by eta, whatever its step."""
    server = optimizer(server_optimizer="adagrad", server_tau=1e-12)
    [found] = steps_of(server, np.array([one, -other]))
    np.testing.assert_allclose(found, [0.1, -0.1], rtol=1e-6)


def test_adagrad_has_a_mean_of_steps_where_one_is_asked_for() -> None:
    """By hand, twice s = 1: m = 0.5, 0.75 and u = 1, 2. Unless asked, m is s."""
    for beta, first, second in ((0.5, 0.05, 0.075 / 2**0.5), ("auto", 0.1, 0.1 / 2**0.5)):
        key = "server-beta1"
        Experiment.from_values({"server-optimizer": "adagrad", key: beta})
        server = optimizer(server_optimizer="adagrad", server_beta1=beta, server_tau=1e-12)
        found = steps_of(server, np.ones(1), np.ones(1))
        np.testing.assert_allclose(np.concatenate(found), [first, second], rtol=1e-6)


def test_adaptive_rules_leave_statistics_to_the_method() -> None:
    old = {"norm.running_var": np.ones(2, np.float32), "norm.weight": np.ones(2)}
    new = {name: array * 2 for name, array in old.items()}
    made = moved(optimizer(server_optimizer="yogi"), old, new)
    np.testing.assert_array_equal(made["norm.running_var"], new["norm.running_var"])
    assert not np.array_equal(made["norm.weight"], new["norm.weight"])


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"server-optimizer": "adam", "server-momentum": 0.9}, "server-momentum = 0.9 has"),
        ({"server-optimizer": "adam", "server-learning-rate": 0.5}, "set server-optimizer"),
        ({"server-optimizer": "nesterov"}, "set another server-momentum too"),
        ({"server-tau": 0.1}, "server-tau = 0.1 has no effect"),
        ({"server-optimizer": "adagrad", "server-beta2": 0.5}, "server-beta2 = 0.5 has no"),
        ({"server-beta1": 0.5}, "server-beta1 = 0.5 has no"),
        ({"server-optimizer": "adm"}, "did you mean 'adam'"),
    ],
)
def test_keys_without_effect_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Experiment.from_values({"method": "fedavg", **keys})


def test_a_constructor_refuses_a_momentum_that_adam_would_ignore() -> None:
    with pytest.raises(ValueError, match="has no effect with server_optimizer"):
        FedAvg(server_optimizer="adam", server_momentum=0.9)
