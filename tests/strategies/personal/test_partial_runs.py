"""FedPer, FedRep, LG-FedAvg, pFedPara on real networks: what travels, and goes on."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    Arrays,
    Request,
    client_record,
)
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.running.worker import Worker
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.store import MemoryStore
from tests.helpers import Tamper, Trace, bits, digits_experiment, run_digits
from tests.small_runs import SMALL, final_model
from tests.strategies.personal.watched import Watching, watched

METHODS = ("fedper", "fedrep", "lg-fedavg", "pfedpara")


# ---- real networks: nothing personal travels, and it goes on


def played(method: str, **changes: Any) -> tuple[Watching, MemoryStore, Any, Trace]:
    keys = {"model": "mlp", "hidden_width": 32, **changes}
    return watched(digits_experiment(method=method, **keys))


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_part_never_travels_and_differs(method: str) -> None:
    grid, store, strategy, trace = played(method)
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
    _, store, strategy, trace = played(method, clients_per_round=1, num_rounds=2)
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
    _, store, strategy, trace = played(method, clients_per_round=1, num_rounds=6)
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
                {"head-epochs": 10, "server-round": server_round},
                start_version=version,
                new_version=f"{server_round}.1",
            )
            version = request.new_version
            kept = alone.client(None, client)  # type: ignore[arg-type]
            kept.answer(request)
        assert bits(kept.store.load(client, version)) == bits(store.load(client, version))


@pytest.mark.parametrize("method", [*METHODS, "fedpac", "fedas", "pfedck"])
def test_resumed_is_uninterrupted(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# ---- refusals


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "fedpara", "fedpara": False}, "method fedpara: set True"),
        ({"method": "pfedpara", "fedpara-personal": False}, "method pfedpara: set True"),
        ({"method": "fedpara", "fedpara-personal": True}, "method fedpara: set False"),
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
