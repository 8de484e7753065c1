"""FedVARP alone, and beside the server's optimiser around methods."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.engines.api import resume, run
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.rounds.aggregation import weighted_mean
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.fedvarp import UpdateMemory
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.server_optimizer import ServerOptimizer
from fedsuite.rounds.stage import Stage
from fedsuite.rounds.validation import ClientReply, Expected, spec_of
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts
from fedsuite.strategies import load_strategy
from tests.helpers import SOME_GROUPS

DIGITS = {
    "method": "fedavg",
    "dataset": "digits",
    "num-clients": 6,
    "partitioner": "shards",
    "clients-per-round": 3,
    "num-rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 1,
    "seed": 3,
    "report": False,
}


def scalar(value: float) -> Arrays:
    return {"w": np.array([value], np.float32)}


def replies(sent: Arrays, updates: dict[int, float]) -> list[ClientReply]:
    return [
        ClientReply(k, {ARRAYS: {"w": sent["w"] + np.float32(u)}}, {}, 1.0)
        for k, u in updates.items()
    ]


def memory_of(num_clients: int) -> UpdateMemory:
    return UpdateMemory(lambda: num_clients)


def corrected(
    memory: UpdateMemory, sent: Arrays, replies: list[ClientReply]
) -> list[ClientReply]:
    expected = Expected({ARRAYS: spec_of(sent)})
    exchange = Exchange("train", [0], {ARRAYS: sent}, expected=expected)
    memory.open(memory.ask(exchange))
    return [one for reply in replies for one in memory.reply(reply)]


def fedvarp_round(memory: UpdateMemory, x: float, updates: dict[int, float]) -> float:
    """Return the model after a round of plain averaging with corrected updates."""
    sent = scalar(x)
    taken = corrected(memory, sent, replies(sent, updates))
    memory.counted()
    mean = weighted_mean((r.arrays[ARRAYS] for r in taken), (1.0 for _ in taken))
    assert mean is not None
    return float(mean["w"][0])


# ---- FedVARP


def test_fedvarp_by_hand() -> None:
    """Clients 0 to 3; rounds of {0, 1}, then {1, 2}.

    Round 1: no memory, mean(4, 8) = 6. Then y = (4, 8, 0, 0), mean 3.
    Round 2: (6 - 8 + 2 - 0) / 2 + 3 = 3. Then y = (4, 6, 2, 0), mean 3.
    Round 3, client 3 alone with 1: 1 - 0 + 3 = 4.
    """
    memory = memory_of(4)
    x = fedvarp_round(memory, 0.0, {0: 4.0, 1: 8.0})
    assert x == 6.0
    x = fedvarp_round(memory, x, {1: 6.0, 2: 2.0})
    assert x == 9.0
    assert {k: float(y["w"][0]) for k, y in memory.updates.items()} == {0: 4, 1: 6, 2: 2}
    assert fedvarp_round(memory, x, {3: 1.0}) == 13.0
    assert memory.num_bytes() == 4 * 4


def test_fedvarp_with_weights_of_the_method_is_the_equation() -> None:
    """sum p_i (Delta_i - y_i) + mean(y), with p = (0.9, 0.1): 0.9 * 1 - 0.1 * 3 + 1.5."""
    memory = memory_of(4)
    fedvarp_round(memory, 0.0, {0: 1.0, 1: 5.0})
    sent = scalar(0.0)
    taken = corrected(memory, sent, replies(sent, {0: 2.0, 1: 2.0}))
    mean = weighted_mean((r.arrays[ARRAYS] for r in taken), (0.9, 0.1))
    assert mean is not None
    np.testing.assert_allclose(mean["w"], [0.9 * 1.0 + 0.1 * -3.0 + 1.5], rtol=1e-6)


@given(st.lists(st.lists(st.floats(-8, 8, width=16), min_size=3, max_size=3), max_size=5))
def test_fedvarp_with_all_clients_is_the_plain_mean(rounds: list[list[float]]) -> None:
    memory, x, plain = memory_of(3), 0.0, 0.0
    for updates in rounds:
        x = fedvarp_round(memory, x, dict(enumerate(updates)))
        plain += sum(updates) / 3
    np.testing.assert_allclose(x, plain, atol=1e-4)


@given(
    st.lists(
        st.dictionaries(st.integers(0, 4), st.floats(-8, 8, width=16), min_size=1),
        max_size=6,
    )
)
def test_fedvarp_remembers_the_last_update_and_their_sum(
    rounds: list[dict[int, float]],
) -> None:
    memory = memory_of(5)
    last: dict[int, float] = {}
    for updates in rounds:
        fedvarp_round(memory, 0.0, updates)
        last |= updates
    assert {k: float(y["w"][0]) for k, y in memory.updates.items()} == last
    if last:
        np.testing.assert_allclose(memory.total["w"], [sum(last.values())], atol=1e-6)


def test_a_round_that_does_not_count_leaves_no_memory() -> None:
    memory = memory_of(2)
    sent = scalar(0.0)
    corrected(memory, sent, replies(sent, {0: 1.0}))
    assert memory.updates == {}
    fedvarp_round(memory, 0.0, {1: 3.0})
    assert set(memory.updates) == {1}


def test_fedvarp_leaves_statistics_and_other_records_alone() -> None:
    memory = memory_of(2)
    sent = {"a.weight": np.zeros(1, np.float32), "a.running_var": np.ones(1, np.float32)}
    model = {name: array + 1 for name, array in sent.items()}
    reply = ClientReply(0, {ARRAYS: model, "first-step": dict(model)}, {"loss": 1.0}, 2.0)
    for _ in range(2):
        (seen,) = corrected(memory, sent, [reply])
        memory.counted()
    # 1 - 1 + 1 / 2.
    np.testing.assert_array_equal(seen.arrays[ARRAYS]["a.weight"], [0.5])
    np.testing.assert_array_equal(seen.arrays[ARRAYS]["a.running_var"], [2.0])
    np.testing.assert_array_equal(seen.arrays["first-step"]["a.weight"], [1.0])
    assert (seen.metrics, seen.num_examples) == ({"loss": 1.0}, 2.0)


# ---- around methods


def exchange_of(shared: Sequence[str], back: Sequence[str], own: Any = None) -> Exchange:
    arrays = scalar(0.0)
    return Exchange(
        "train",
        [0],
        dict.fromkeys(shared, arrays),
        own=own or {},
        expected=Expected({name: spec_of(arrays) for name in back}),
    )


@pytest.mark.parametrize(
    "stage",
    [
        ServerOptimizer(RoundSettings(server_momentum=0.5)),
        ServerOptimizer(RoundSettings(server_optimizer="adam")),
        memory_of(2),
    ],
)
def test_methods_without_a_shared_model_are_refused(stage: Stage) -> None:
    stage.ask(exchange_of([ARRAYS], [ARRAYS]))
    for exchange in (
        exchange_of([], []),
        exchange_of([ARRAYS], ["logits"]),
        exchange_of([ARRAYS], [ARRAYS], own={0: {ARRAYS: scalar(1.0)}}),
    ):
        with pytest.raises(ConfigError, match="choose another method"):
            stage.ask(exchange)


def digits_run(folder: Path, name: str, **changes: Any) -> Any:
    keys = {key.replace("_", "-"): value for key, value in changes.items()}
    places = {"output-dir": str(folder), "run-name": name}
    return run({**DIGITS, **keys, **places})


def model_of(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def test_keys_reach_the_strategy() -> None:
    plain = build_strategy(Experiment.from_values(DIGITS), ServerParts(SOME_GROUPS))
    assert not plain.step_stages
    given_keys = {**DIGITS, "server-momentum": 0.9, "fedvarp": True}
    strategy = build_strategy(Experiment.from_values(given_keys), ServerParts(SOME_GROUPS))
    optimizer, memory = strategy.step_stages
    assert isinstance(optimizer, ServerOptimizer) and isinstance(memory, UpdateMemory)
    assert optimizer.keys.server_momentum == 0.9
    with pytest.raises(ConfigError, match="key server-momentum"):
        Experiment.from_values({**DIGITS, "server-momentum": 1.5})


@pytest.mark.parametrize(
    "changes",
    [
        {"server_momentum": 0.9},
        {"server_momentum": 0.9, "server_optimizer": "nesterov"},
        {"server_optimizer": "yogi"},
        {"fedvarp": True},
        {"method": "fedprox", "fedvarp": True},
    ],
)
def test_extras_change_a_run_and_repeat_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    off = {"server_momentum": 0.0, "server_optimizer": "sgd", "fedvarp": False}
    method = {"method": changes.get("method", "fedavg")}
    plain = digits_run(tmp_path, "plain", **{**off, **method})
    first = digits_run(tmp_path, "first", **changes)
    second = digits_run(tmp_path, "second", **changes)
    assert model_of(first.path) == model_of(second.path)
    assert model_of(first.path) != model_of(plain.path)


@pytest.mark.parametrize(
    "optimizer", [{"server_momentum": 0.5}, {"server_optimizer": "adam"}]
)
def test_a_run_resumed_goes_on_with_what_the_server_remembers(
    tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {**optimizer, "fedvarp": True}
    whole = digits_run(tmp_path, "whole", **changes)
    part = digits_run(tmp_path, "part", num_rounds=2, **changes)
    resume(part.path, num_rounds=4)
    assert model_of(part.path) == model_of(whole.path)


@pytest.mark.parametrize(
    "keys",
    [
        RoundSettings(server_momentum=0.5),
        RoundSettings(server_optimizer="yogi"),
    ],
)
def test_state_is_whole_and_restoring_replaces_it(keys: RoundSettings) -> None:
    def used(value: float) -> tuple[Stage, Stage]:
        memory, optimizer = memory_of(2), ServerOptimizer(keys)
        fedvarp_round(memory, 0.0, {7: value})
        optimizer.step(scalar(0.0), scalar(value))
        optimizer.counted()
        return memory, optimizer

    for stage, other in zip(used(3.0), used(5.0), strict=True):
        state = stage.state()
        assert all(state[part] for part in ("total", "updates", "mean") if part in state)
        other.restore(state)
        np.testing.assert_equal(other.state(), state)


def test_standalone_with_momentum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server-momentum = .* with method standalone"):
        digits_run(tmp_path, "alone", method="standalone", server_momentum=0.9)


@pytest.mark.parametrize("method", [m for m in METHODS if "fedpara" not in m])
def test_methods_without_one_shared_model_are_refused_before_anything_starts(
    method: str,
) -> None:
    strategy = load_strategy(METHODS[method])
    # Newton's clients share one model and train none. FedBuff's late replies are moved to
    # one model before the server's step.
    steps = strategy.trains_one_model() and "fedvarp" not in strategy.WITHOUT_EFFECT
    if steps or method == "fedbuff":
        Experiment.from_values({"method": method, "server-momentum": 0.5})
        return
    for key, value in (
        ("server-momentum", 0.5),
        ("server-optimizer", "adam"),
        ("fedvarp", True),
    ):
        with pytest.raises(ConfigError, match=f"key {key} = {value!r} .*one shared model"):
            Experiment.from_values({"method": method, key: value})
