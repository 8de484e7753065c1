"""What clients keep: vectors of trainable parameters, and of those received alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.clients.drift.corrected import CorrectedClient
from fedsuite.clients.drift.feddc import FedDCClient
from fedsuite.clients.drift.feddyn import FedDynClient
from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.clients.drift.scaffold import ScaffoldClient
from fedsuite.core.errors import ConfigError
from fedsuite.data import Split
from fedsuite.messages.records import (
    ARRAYS,
    CONTROL,
    CONTROL_CHANGE,
    Arrays,
    Reply,
    Request,
)
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.drift.corrected import CorrectedStrategy
from fedsuite.strategies.drift.feddc import FedDC
from fedsuite.strategies.drift.feddyn import FedDyn
from fedsuite.strategies.drift.scaffold import Scaffold
from fedsuite.strategies.personal.ditto import Ditto
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import aggregated, bits, digits_experiment

CONFIG: dict[str, Any] = {
    "feddyn-alpha": 0.1,
    "feddc-alpha": 0.1,
    "scaffold-option": "steps",
    "server-round": 1,
}
CLIENTS = {
    ScaffoldClient: ("control",),
    FedDynClient: ("lambda",),
    FedDCClient: ("drift", "control"),
}
each_client = pytest.mark.parametrize("client_class", CLIENTS)


class Net(nn.Module):
    """Trainable, frozen and unused parameters, and the buffers of a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Parameter(torch.zeros(2))
        self.weight = nn.Parameter(torch.randn(3, 2, generator=generator))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(features) * self.frozen
        return out @ self.weight


STEPPED = ("norm.weight", "norm.bias", "weight")
TRAINABLE = {"norm.weight", "norm.bias", "unused", "weight"}


def client_of(
    client_class: type[CorrectedClient], store: MemoryStore, **training: Any
) -> CorrectedClient:
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(12, 3, generator=generator)
    data = Split(features, torch.arange(12) % 2)
    work = TrainingOptions(**{"local_steps": 3, "batch_size": 4, **training})
    return client_class(Net(), data, data, training=work, store=store)


def controls(value: float, arrays: Arrays) -> Arrays:
    """c as the server sends it, which knows frozen arrays as any other."""
    return {n: np.full_like(a, value) for n, a in arrays.items() if "running" not in n}


def train(
    client: CorrectedClient,
    arrays: Arrays,
    control: float,
    start: str = "",
    config: Mapping[str, Any] = CONFIG,
) -> tuple[Reply, Arrays]:
    """Train in the round after ``start``; return the reply and what is kept then."""
    server_round = int(start.partition(".")[0] or 0) + 1
    new = f"{server_round}.1"
    sent = {n: a for n, a in arrays.items() if "num_batches" not in n}
    records = {ARRAYS: arrays}
    if not isinstance(client, FedDynClient):
        records[CONTROL] = controls(control, sent)
    request = Request("train", 0, records, config, start, "", new)
    reply = client.answer(request)
    return reply, client.store.load(0, new)


@each_client
def test_vectors_are_of_trainable_parameters_alone(
    client_class: type[CorrectedClient],
) -> None:
    """One that no step reaches keeps its vector, whatever c is."""
    client = client_of(client_class, MemoryStore())
    reply, kept = train(client, model_arrays(client.model), 0.25)
    kinds = CLIENTS[client_class]
    assert set(kept) == {f"{kind}/{name}" for kind in kinds for name in TRAINABLE}
    assert set(reply.arrays[ARRAYS]) == set(model_arrays(Net()))
    moved = [name for name, array in kept.items() if array.any()]
    assert {name.partition("/")[2] for name in moved} == set(STEPPED)
    if CONTROL_CHANGE in reply.arrays:
        change = reply.arrays[CONTROL_CHANGE]
        assert set(change) == TRAINABLE | {"frozen"}
        assert not change["frozen"].any()
        assert all(kept[f"control/{n}"].tobytes() == change[n].tobytes() for n in TRAINABLE)
    assert all(array.dtype == np.float32 for array in kept.values())


@each_client
def test_of_a_part_of_the_model_the_rest_stays_as_it_was(
    client_class: type[CorrectedClient],
) -> None:
    client = client_of(client_class, MemoryStore())
    whole = model_arrays(client.model)
    _, before = train(client, whole, 0.25)
    part = {"weight": whole["weight"], "norm.running_mean": whole["norm.running_mean"]}
    reply, after = train(client, part, 0.25, "1.1")
    assert set(reply.arrays[ARRAYS]) == set(part)
    assert set(reply.arrays.get(CONTROL_CHANGE, {"weight": 0})) == {"weight"}
    assert set(after) == set(before)
    for name in after:
        same = after[name].tobytes() == before[name].tobytes()
        assert same == (name.partition("/")[2] != "weight"), name


@each_client
def test_other_names_are_trained_without_correction(
    client_class: type[CorrectedClient],
) -> None:
    """A vector that the client keeps of an array that was not sent takes no part.

    Nor does what an earlier message made of it.
    """
    fresh = client_of(client_class, MemoryStore())
    whole = model_arrays(fresh.model)
    fresh.store.save(0, "1.1", {}, set())
    train(fresh, {"weight": whole["weight"]}, 0.0, "1.1")
    used = client_of(client_class, MemoryStore())
    keys = [f"{kind}/norm.bias" for kind in CLIENTS[client_class]]
    used.store.save(0, "1.1", {k: np.full(3, 9.0, np.float32) for k in keys}, set())
    train(used, whole, 5.0, "1.1")
    used.model.load_state_dict({n: torch.tensor(a) for n, a in whole.items()})
    train(used, {"weight": whole["weight"]}, 0.0, "1.1")
    assert bits(model_arrays(used.model)) == bits(model_arrays(fresh.model))


@each_client
def test_the_plain_mean_is_scored_beside_the_model(
    client_class: type[CorrectedClient],
) -> None:
    client = client_of(client_class, MemoryStore())
    whole = model_arrays(client.model)
    other = {**whole, "weight": -3 * whole["weight"]}

    def score(**records: Arrays) -> Mapping[str, Any]:
        return client.answer(Request("evaluate", 0, records)).metrics

    alone, mean = score(arrays=whole), score(arrays=other)
    assert alone["loss"] != mean["loss"]
    both = score(**{ARRAYS: whole, "plain-mean": other})
    assert bits(model_arrays(client.model)) == bits(whole)
    more = {f"plain-mean-{name}": mean[name] for name in ("loss", "accuracy")}
    assert both == {**alone, **more}


@each_client
def test_the_same_request_gives_the_same_reply(
    client_class: type[CorrectedClient],
) -> None:
    client = client_of(client_class, MemoryStore())
    whole = model_arrays(client.model)
    train(client, whole, 0.25)
    first, kept = train(client, whole, 0.1, "1.1")
    again, kept_again = train(client, whole, 0.1, "1.1")
    assert bits(kept) == bits(kept_again)
    for name in first.arrays:
        assert bits(first.arrays[name]) == bits(again.arrays[name])


def test_feddyn_from_zero_is_fedprox_bit_for_bit() -> None:
    dynamic = client_of(FedDynClient, MemoryStore())
    prox = client_of(FedProxClient, MemoryStore())  # type: ignore[type-var, arg-type]
    whole = model_arrays(Net())
    request = Request("train", 0, {ARRAYS: whole}, {**CONFIG, "proximal-mu": 0.1})
    mine, theirs = dynamic.answer(request), prox.answer(request)
    assert bits(mine.arrays[ARRAYS]) == bits(theirs.arrays[ARRAYS])


def test_clipped_correction_is_in_the_control_variate() -> None:
    """All steps of rate 0.1 are of norm 0.5 or less: the mean gradient is too."""
    options = {"clip_gradient_norm": 0.5, "learning_rate": 0.1}
    client = client_of(ScaffoldClient, MemoryStore(), **options)
    _, kept = train(client, model_arrays(client.model), 100.0)
    moved = np.concatenate([(kept[f"control/{n}"] + 100).ravel() for n in STEPPED])
    assert 0.3 < np.linalg.norm(moved) <= 0.5 + 1e-3
    unclipped = client_of(ScaffoldClient, MemoryStore(), learning_rate=0.1)
    _, kept = train(unclipped, model_arrays(unclipped.model), 100.0)
    moved = np.concatenate([(kept[f"control/{n}"] + 100).ravel() for n in STEPPED])
    assert np.linalg.norm(moved) > 100


def test_option_gradient_leaves_no_trace_in_the_training() -> None:
    client = client_of(ScaffoldClient, MemoryStore())
    whole = model_arrays(client.model)
    config = {**CONFIG, "scaffold-option": "gradient"}
    steps, _ = train(client, whole, 0.0)
    full, kept = train(client, whole, 0.0, "", config)
    assert bits(steps.arrays[ARRAYS]) == bits(full.arrays[ARRAYS])
    assert not kept["control/unused"].any()
    assert kept["control/weight"].any()


def test_statistics_get_the_plain_mean_at_any_server_rate() -> None:
    arrays = {"w": np.zeros(1, np.float32), "n.running_var": np.ones(1, np.float32)}
    strategy = Scaffold(server_learning_rate=3.0)
    replies = (
        ClientReply(
            k,
            {
                ARRAYS: {"w": np.full(1, v), "n.running_var": np.full(1, v)},
                CONTROL_CHANGE: {},
            },
            {},
            num_examples=n,
        )
        for k, (v, n) in enumerate([(0.2, 1), (0.4, 99)])
    )
    found = aggregated(strategy, arrays, replies)
    assert found is not None
    assert found["w"] == pytest.approx(0.9)
    assert found["n.running_var"] == pytest.approx(0.3)


@pytest.mark.parametrize("strategy_class", [Scaffold, FedDyn, FedDC])
def test_replies_with_a_part_of_the_model_leave_the_rest_as_it_was(
    strategy_class: type[CorrectedStrategy],
) -> None:
    strategy = strategy_class()
    strategy._clients = {0}
    arrays = {name: np.full(1, 0.5, np.float32) for name in ("fast", "slow")}
    part = {"fast": np.full(1, 0.75, np.float32)}
    records = {ARRAYS: part, CONTROL_CHANGE: {"fast": np.full(1, 2.0, np.float32)}}
    replies = iter([ClientReply(0, records, {}, num_examples=1)])
    found = aggregated(strategy, arrays, replies)
    assert found is not None
    assert list(found) == ["fast", "slow"]
    assert found["slow"] == 0.5
    assert found["fast"] == (0.75 if strategy_class is Scaffold else 1.0)
    strategy.counted(found)
    assert all(set(vectors) == {"fast"} for vectors in strategy.sums.values())
    assert set(strategy.mean_vector(CONTROL, arrays)) == {"fast", "slow"}


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "feddc"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("momentum", 0.9), ("optimizer", "adam"), ("upload_noise_multiplier", 1.0)],
)
def test_what_the_equations_do_not_hold_for_is_refused(
    method: str, key: str, value: Any
) -> None:
    words = f"method {method}: its equations are those of plain SGD steps"
    with pytest.raises(ConfigError, match=words):
        digits_experiment(method=method, **{"learning_rate": 0.1, key: value})


@each_client
@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_clients_take_plain_sgd_steps_only(
    client_class: type[CorrectedClient], options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"needs optimizer = 'sgd' and momentum = 0\.0"):
        client_of(client_class, MemoryStore(), **options)


@pytest.mark.parametrize("strategy", [Scaffold, FedDyn, FedDC, Ditto])
def test_legacy_clients_cannot_keep_what_these_methods_need(
    strategy: type[FederatedStrategy],
) -> None:
    with pytest.raises(ValueError, match="a legacy NumPyClient app stores nothing"):
        strategy(wire="numpy")


@pytest.mark.parametrize("method", ["feddyn", "feddc"])
def test_fedvarp_is_refused_where_the_server_works_out_the_drift(method: str) -> None:
    with pytest.raises(ConfigError, match=f"fedvarp = True cannot go with method {method}"):
        digits_experiment(method=method, fedvarp=True)
