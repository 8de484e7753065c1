"""FedPer, FedRep, LG-FedAvg, pFedPara: what is shared, and what stays at home."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedsuite
from fedsuite.client_app import Worker, client_app_for, experiment_model, federated_data
from fedsuite.clients.evaluation import evaluate_model
from fedsuite.clients.fedavg import FedAvgClient
from fedsuite.clients.fedrep import FedRepClient
from fedsuite.clients.partial import PartialClient
from fedsuite.clients.standalone import StandaloneClient
from fedsuite.clients.store import MemoryStore
from fedsuite.clients.training import (
    TrainingOptions,
)
from fedsuite.data import Split
from fedsuite.errors import ConfigError
from fedsuite.experiment import Experiment
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.groups import ParameterGroups, parameter_groups
from fedsuite.records import (
    ARRAYS,
    Arrays,
    Request,
    client_record,
    to_arrays,
    to_record,
)
from fedsuite.server_app import build_strategy
from fedsuite.server_parts import ServerParts
from fedsuite.strategies.fedavg import FedAvg
from fedsuite.strategies.fedpara import PFedPara
from fedsuite.strategies.fedper import FedPer
from fedsuite.strategies.fedrep import FedRep
from fedsuite.strategies.lg_fedavg import LGFedAvg
from fedsuite.strategies.standalone import Standalone
from fedsuite.strategies.validation import ClientReply
from tests.helpers import (
    Tamper,
    Trace,
    bits,
    digits_experiment,
    run,
    run_digits,
)
from tests.small_runs import SMALL, final_model, without_plots
from tests.strategies.products import (
    GROUPS,
    HALF_STEP,
    TWO,
    numbers,
    play,
    product,
    split,
)
from tests.strategies.watched import Watching

METHODS = ("fedper", "fedrep", "lg-fedavg", "pfedpara")


def stored(store: MemoryStore, version: str) -> list[float]:
    """Return the one number that each of the two clients keeps."""
    return [numbers(store.load(client, version))[0] for client in range(2)]


# ---- two clients, two rounds, by hand


def test_fedper_by_hand() -> None:
    """Body 1 -> (2, 0.5) -> 7/8; then from (7/8, 2) and (7/8, 1/2)."""
    store = MemoryStore()
    trace = play(FedPer(**TWO), PartialClient, store=store)
    assert [numbers(arrays) for arrays in trace.arrays] == [[0.875, 1.0], [1.10546875, 1.0]]
    assert stored(store, "2.1") == [2.546875, 0.30859375]
    assert [r.metrics["shared_parameters"] for r in trace.reports] == [1, 1]


def test_fedrep_by_hand() -> None:
    """Head first: v = (2, 1/2), then u = (2, 7/8), body (2 + 3 * 7/8) / 4."""
    store = MemoryStore()
    strategy = FedRep(**TWO, head_epochs=1, body_epochs=1)
    # The options of the method replace those of the client.
    training = replace(HALF_STEP, local_steps=7, local_epochs=9)
    trace = play(strategy, FedRepClient, 1, store=store, training=training)
    assert numbers(trace.arrays[0]) == [1.15625, 1.0]
    assert stored(store, "1.1") == [2.0, 0.5]
    assert [row["num_steps"] for row in trace.reports[0].train.rows] == [2, 2]
    # Losses before each step: (2, 1/2) and (1/2, 1/8).
    assert [row["loss"] for row in trace.reports[0].train.rows] == [1.25, 0.3125]


@pytest.mark.parametrize(("head_epochs", "body_epochs"), [(1, 1), (3, 2), (0, 2), (2, 0)])
def test_fedrep_rounds_follow_the_equations(head_epochs: int, body_epochs: int) -> None:
    store = MemoryStore()
    strategy = FedRep(**TWO, head_epochs=head_epochs, body_epochs=body_epochs)
    training = replace(HALF_STEP, learning_rate=0.125, momentum=0.5)
    trace = play(strategy, FedRepClient, 3, store=store, training=training)
    body, heads = 1.0, [1.0, 1.0]
    for _ in range(3):
        bodies = []
        for client, label in enumerate((3, 0)):
            u, v, speed = body, heads[client], 0.0
            for _ in range(head_epochs):
                speed = 0.5 * speed + (u * v - label) * u
                v -= 0.125 * speed
            speed = 0.0
            for _ in range(body_epochs):
                speed = 0.5 * speed + (u * v - label) * v
                u -= 0.125 * speed
            heads[client] = v
            bodies.append(u)
        body = (bodies[0] + 3 * bodies[1]) / 4
    assert numbers(trace.arrays[-1]) == pytest.approx([body, 1.0], rel=1e-5)
    assert stored(store, "3.1") == pytest.approx(heads, rel=1e-5)


def test_lg_fedavg_by_hand() -> None:
    """Head 1 -> (2, 1/2), plain mean 5/4; then from (2, 5/4) and (1/2, 5/4)."""
    store = MemoryStore()
    trace = play(LGFedAvg(**TWO), PartialClient, store=store)
    assert [numbers(arrays) for arrays in trace.arrays] == [[1.0, 1.25], [1.0, 1.421875]]
    assert stored(store, "2.1") == pytest.approx([2.3125, 0.109375], rel=1e-6)


def replies_of(*bodies: list[float]) -> Any:
    for client, (values, count) in enumerate(zip(bodies, (10, 30), strict=True)):
        yield ClientReply(client, {ARRAYS: {"body": np.array(values)}}, {}, count)


GLOBAL: Arrays = {"body": np.zeros(2), "head": np.ones(2)}


def test_golden_means() -> None:
    """n = (10, 30): by size (2.5, 5), plainly (2, 4); what is not shared stays."""
    groups = ParameterGroups(head=("head",), other=("body",), layers=(("head",), ("body",)))
    for kind, expected in ((FedPer, [2.5, 5]), (FedRep, [2.5, 5]), (LGFedAvg, [2, 4])):
        found = kind(groups=groups).aggregate(GLOBAL, replies_of([1.0, 2.0], [3.0, 6.0]))
        assert found is not None
        assert found["body"].tolist() == expected
        assert found["head"] is GLOBAL["head"]


def test_server_rate_acts_on_the_shared_part() -> None:
    groups = ParameterGroups(head=("head",), other=("body",))
    half = FedPer(groups=groups, server_learning_rate=0.5)
    found = half.aggregate(GLOBAL, replies_of([1.0, 2.0], [3.0, 6.0]))
    assert found is not None
    assert [a.tolist() for a in found.values()] == [[1.25, 2.5], [1, 1]]


def test_lg_leaves_out_clients_without_examples() -> None:
    groups = ParameterGroups(head=(), other=("body",), layers=(("body",),))
    replies = (
        replace(r, num_examples=30 * r.client_id) for r in replies_of([9, 9], [1, 2])
    )
    found = LGFedAvg(groups=groups).aggregate({"body": np.zeros(2)}, replies)
    assert found is not None
    assert found["body"].tolist() == [1, 2]


# ---- identities

ALL_SHARED = ParameterGroups(
    head=(), other=("0.weight", "1.weight"), layers=(("0.weight",), ("1.weight",))
)
NONE_SHARED = ParameterGroups(head=("0.weight", "1.weight"), other=())


def test_nothing_personal_is_fedavg() -> None:
    options = {k: v for k, v in TWO.items() if k != "groups"}
    expected = play(FedAvg(**options), FedAvgClient, 3)
    trace = play(FedPer(**{**TWO, "groups": ALL_SHARED}), PartialClient, 3)
    rep = FedRep(**{**TWO, "groups": ALL_SHARED}, head_epochs=5)
    repeated = play(rep, FedRepClient, 3)
    for found in (trace, repeated):
        assert [bits(a) for a in found.arrays] == [bits(a) for a in expected.arrays]
    alike = play(FedAvg(**options), FedAvgClient, 3, counts=(2, 2))
    lg = LGFedAvg(**{**TWO, "groups": ALL_SHARED}, shared_layers=2)
    plain = play(lg, PartialClient, 3, counts=(2, 2))
    assert [bits(a) for a in plain.arrays] == [bits(a) for a in alike.arrays]


def test_nothing_shared_is_standalone() -> None:
    options = {k: v for k, v in TWO.items() if k != "groups"}
    expected = MemoryStore()
    play(Standalone(**options), StandaloneClient, 3, store=expected)
    strategies = [
        FedPer(**{**TWO, "groups": NONE_SHARED}),
        LGFedAvg(**TWO, shared_layers=0),
    ]
    for strategy in strategies:
        store = MemoryStore()
        trace = play(strategy, PartialClient, 3, store=store)
        assert numbers(trace.arrays[-1]) == [1.0, 1.0]
        assert not trace.reports[0].train.rejections
        assert trace.reports[-1].metrics["bytes_up"] == 0
        for client in range(2):
            found = store.load(client, "3.1")
            assert bits(found) == bits(expected.load(client, "3.1"))


def test_fedrep_without_head_training_keeps_the_initial_head() -> None:
    """Then it is FedAvg on the body with a fixed head."""
    store = MemoryStore()
    trace = play(FedRep(**TWO, head_epochs=0), FedRepClient, 1, store=store)
    assert stored(store, "1.1") == [1.0, 1.0]
    assert numbers(trace.arrays[0]) == [0.875, 1.0]


@given(st.data())
def test_shared_and_personal_make_the_whole(data: st.DataObject) -> None:
    """Whatever the groups and the part of the model that a wrapper lets through."""
    names = data.draw(st.lists(st.text("abc", min_size=1), unique=True, min_size=1))
    cut = data.draw(st.integers(0, len(names)))
    layers = tuple((name,) for name in names)
    groups = ParameterGroups(tuple(names[cut:]), tuple(names[:cut]), layers=layers)
    passed = [name for name in names if data.draw(st.booleans())]
    arrays = {name: np.array([float(i)]) for i, name in enumerate(passed)}
    for strategy, expected in (
        (FedPer(groups=groups), names[:cut]),
        (LGFedAvg(groups=groups, shared_layers=len(names) - cut), names[cut:]),
    ):
        exchange = strategy.train_exchange(arrays, [0])
        assert list(exchange.shared[ARRAYS]) == [n for n in passed if n in expected]
        assert set(exchange.expected.arrays[ARRAYS]) == set(exchange.shared[ARRAYS])
        evaluation = strategy.evaluate_exchange(arrays, [0])
        assert list(evaluation.shared[ARRAYS]) == list(exchange.shared[ARRAYS])
        reply = {name: array + 1 for name, array in exchange.shared[ARRAYS].items()}
        replies = iter([ClientReply(0, {ARRAYS: reply}, {}, 2.0)])
        made = strategy.aggregate(arrays, replies)
        assert made is not None
        assert list(made) == passed
        for name, array in made.items():
            assert array[0] == arrays[name][0] + (name in expected)


# ---- real networks: nothing personal travels, and it goes on


def watched(method: str, **changes: Any) -> tuple[Watching, MemoryStore, Any, Trace]:
    experiment = digits_experiment(method=method, model="mlp", hidden_width=32, **changes)
    store = MemoryStore()
    model = experiment_model(experiment, federated_data(experiment))
    grid = Watching(client_app_for(Worker(experiment, store)), 4)
    groups = parameter_groups(model)
    strategy = build_strategy(experiment, ServerParts(groups))
    trace = run(strategy, grid, experiment["num-rounds"], to_record(model_arrays(model)))
    return grid, store, strategy, trace


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_part_never_travels_and_differs(method: str) -> None:
    grid, store, strategy, trace = watched(method)
    seen = grid.arrays_seen()
    names = {name for name, _ in seen}
    personal = set(strategy.groups.names) - names
    expected = {
        "fedper": set(strategy.groups.head),
        "fedrep": set(strategy.groups.head),
        "lg-fedavg": set(strategy.groups.other),
        "pfedpara": set(strategy.groups.personal),
    }[method]
    assert personal == expected != set()
    contents = {content for _, content in seen}
    kept = [store.load(k, version) for k, version in strategy.client_versions.items()]
    assert len(kept) == 4
    for name in personal:
        found = [bits(arrays)[name] for arrays in kept]
        assert len(set(found)) == 4
        assert not contents & set(found)
        first, last = trace.arrays[0][name], trace.arrays[-1][name]
        assert first.tobytes() == last.tobytes()
    assert all(set(arrays) == personal for arrays in kept)


@pytest.mark.parametrize("method", METHODS)
def test_clients_are_scored_with_their_own_part(method: str) -> None:
    """Also those that were never asked: with the initial part."""
    _, store, strategy, trace = watched(method, clients_per_round=1, num_rounds=2)
    experiment = digits_experiment(method=method, model="mlp", hidden_width=32)
    data = federated_data(experiment)
    model = experiment_model(experiment, data)
    initial = model_arrays(model)
    versions = strategy.client_versions
    assert 0 < len(versions) < 4
    shared = strategy.shared(trace.arrays[-1])
    for row in trace.reports[-1].evaluate.rows:
        client = row["client"]
        own = store.load(client, versions[client]) if client in versions else {}
        load_arrays(model, {**initial, **own, **shared})
        loss, accuracy = evaluate_model(model, data.client(client).test)
        assert (row["loss"], row["accuracy"]) == (loss, accuracy)


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_part_survives_rounds_without_its_client(method: str) -> None:
    """With one client a round, it goes on from the version of its last round."""
    _, store, strategy, trace = watched(method, clients_per_round=1, num_rounds=6)
    rounds: dict[int, list[int]] = {}
    for report in trace.reports:
        rounds.setdefault(report.train.rows[0]["client"], []).append(report.server_round)
    assert any(b - a > 1 for r in rounds.values() for a, b in pairwise(r))
    assert strategy.client_versions == {k: f"{r[-1]}.1" for k, r in rounds.items()}
    experiment = digits_experiment(method=method, model="mlp", hidden_width=32)
    alone = Worker(experiment, MemoryStore())
    model = experiment_model(experiment, federated_data(experiment))
    sent = [strategy.shared(a) for a in (model_arrays(model), *trace.arrays)]
    for client, taken in rounds.items():
        version = ""
        for server_round in taken:
            request = Request(
                "train",
                client,
                {ARRAYS: sent[server_round - 1]},
                {"head-epochs": 10, "body-epochs": 1, "server-round": server_round},
                start_version=version,
                new_version=f"{server_round}.1",
            )
            version = request.new_version
            kept = alone.client(None, client)  # type: ignore[arg-type]
            kept.answer(request)
        assert bits(kept.store.load(client, version)) == bits(store.load(client, version))


@pytest.mark.parametrize("method", [*METHODS, "fedpac"])
def test_resumed_is_uninterrupted(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    monkeypatch.chdir(tmp_path)
    keys = {**SMALL, "model": "mlp", "hidden-width": 32, "method": method}
    short = fedsuite.run({**keys, "num-rounds": 2, "run-name": "short"})
    longer = fedsuite.resume(short.path, num_rounds=4)
    whole = fedsuite.run({**keys, "num-rounds": 4, "run-name": "whole"})
    assert final_model(longer.path) == final_model(whole.path)
    for name in ("loss", "accuracy"):
        found = longer.client_values("evaluate", name)
        assert found == whole.client_values("evaluate", name)


def with_head(arrays: Arrays) -> Arrays:
    return {**arrays, "5.bias": np.zeros(10, np.float32)}


def without_an_array(arrays: Arrays) -> Arrays:
    return dict(list(arrays.items())[1:])


def of_another_shape(arrays: Arrays) -> Arrays:
    return {name: array[:1] for name, array in arrays.items()}


def not_finite(arrays: Arrays) -> Arrays:
    return {name: array * np.float32(np.nan) for name, array in arrays.items()}


@pytest.mark.parametrize(
    "change", [with_head, without_an_array, of_another_shape, not_finite]
)
def test_bad_replies_are_dropped(change: Callable[[Arrays], Arrays]) -> None:
    name = client_record(1, ARRAYS)

    def tamper(replies: list[Message]) -> list[Message]:
        arrays = to_arrays(replies[1].content.array_records[name])
        replies[1].content[name] = to_record(change(arrays))
        return replies

    experiment = digits_experiment(method="fedper", model="mlp", num_rounds=1)
    trace = run_digits(experiment, tamper=tamper)
    [rejection] = trace.reports[0].train.rejections
    assert rejection.client_id == 1
    assert [row["client"] for row in trace.reports[0].train.rows] == [0, 2, 3]
    assert bits(trace.arrays[0]) == bits(
        run_digits(experiment, tamper=without(1)).arrays[0]
    )


def without(client: int) -> Tamper:
    """Return a tamper that loses the reply of a client."""
    return lambda replies: [r for k, r in enumerate(replies) if k != client]


# ---- the client


class Normalised(nn.Sequential):
    """A body with statistics, and a head with statistics of its own."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2)
        )


def test_frozen_parts_do_not_move_nor_do_their_statistics() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 2, generator=generator)
    data = Split(features, (features[:, 0] > 0).long())
    model = Normalised()
    body = ["0.weight", "0.bias", *(n for n in model.state_dict() if n.startswith("1."))]
    before = model_arrays(model)
    for head_epochs, body_epochs in ((2, 0), (0, 2)):
        load_arrays(model, before)
        options = TrainingOptions(batch_size=4, momentum=0.9, weight_decay=0.1)
        client = FedRepClient(model, data, data, training=options)
        config = {"head-epochs": head_epochs, "body-epochs": body_epochs}
        received = {name: before[name] for name in body}
        reply = client.answer(Request("train", 0, {ARRAYS: received}, config))
        after = model_arrays(model)
        assert list(reply.arrays[ARRAYS]) == body
        for name, array in after.items():
            moved = array.tobytes() != before[name].tobytes()
            assert moved == ((name in body) == (body_epochs > 0)), name
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_head_and_body_draw_from_streams_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    purposes = []
    usual = FedRepClient.train_locally

    def watch(self: Any, request: Request, purpose: str = "batches", **options: Any) -> Any:
        purposes.append(purpose)
        return usual(self, request, purpose, **options)

    monkeypatch.setattr(FedRepClient, "train_locally", watch)
    play(FedRep(**TWO), FedRepClient, 1)
    assert purposes == ["head-batches", "batches"] * 2


def test_client_without_its_numbers_says_so() -> None:
    trace = play(FedPer(**TWO), FedRepClient, 1)
    reasons = [rejection.reason for rejection in trace.reports[0].train.rejections]
    assert "the message has no number head-epochs: use the strategy" in reasons[0]


def test_clients_share_a_model_without_a_trace() -> None:
    """What another client left in the shared memory is not taken for the own part."""
    model, store = product(), MemoryStore()
    data = split(3, 2)
    clients = [PartialClient(model, data, data, client_id=k, store=store) for k in range(2)]
    with torch.no_grad():
        model[1].weight.fill_(77.0)  # type: ignore[union-attr,operator]
    body = {"0.weight": np.ones((1, 1), np.float32)}
    request = Request("evaluate", 1, {ARRAYS: body})
    clients[1]._load_whole(request)
    assert numbers(model_arrays(model)) == [1.0, 1.0]


# ---- refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FedRep(groups=GROUPS, head_epochs=-1), "head_epochs = -1"),
        (lambda: FedRep(groups=GROUPS, body_epochs=-1), "body_epochs = -1"),
        (lambda: LGFedAvg(groups=GROUPS, shared_layers=3), "expected 0 to 2"),
        (lambda: LGFedAvg(groups=GROUPS, shared_layers=-1), "expected 0 to 2"),
        (lambda: PFedPara(groups=GROUPS), "no second factors"),
    ],
)
def test_bad_options(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "fedrep", "local-epochs": 5}, "method fedrep needs 1"),
        ({"method": "fedrep", "local-steps": 5}, "method fedrep needs 0"),
        ({"method": "fedpara", "fedpara": False}, "method fedpara needs True"),
        ({"method": "pfedpara", "fedpara-personal": False}, "method pfedpara needs True"),
        ({"method": "fedpara", "fedpara-personal": True}, "method fedpara needs False"),
    ],
)
def test_keys_that_a_method_fixes(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Experiment.from_values(keys)


# ---- FedPara


def test_fedpara_is_fedavg_on_the_factors() -> None:
    keys: dict[str, Any] = {"model": "mlp", "hidden_width": 32, "num_rounds": 2}
    found = run_digits(digits_experiment(method="fedpara", **keys))
    plain = run_digits(digits_experiment(method="fedavg", fedpara=True, **keys))
    assert bits(found.arrays[-1]) == bits(plain.arrays[-1])
    assert {"1.x1", "1.x2"} <= set(found.arrays[-1])
    dense = run_digits(digits_experiment(method="fedavg", **keys))
    assert found.reports[-1].metrics["bytes_up"] < dense.reports[-1].metrics["bytes_up"]
