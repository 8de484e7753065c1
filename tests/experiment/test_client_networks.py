"""Clients with different networks: who trains what, from where, and what is recorded."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.engines.local import run_local
from fedsuite.experiment.data_and_models import (
    experiment_model,
    federated_data,
    network_model,
)
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import EVALUATE, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.results.networks import accuracy_by_network
from fedsuite.results.reader import Run, load_run
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints
from fedsuite.running.worker import Worker
from fedsuite.training.store import MemoryStore
from tests.helpers import bits, digits_experiment, run_digits
from tests.small_runs import client_states

THREE = "mlp:hidden-width=8, linear, mlp:hidden-width=8:hidden-layers=1"
TURNS: dict[str, Value] = {
    "method": "standalone",
    "client_models": THREE,
    "client_model_assignment": "round-robin",
}
SHARED: dict[str, Value] = {"client_initialisation": "shared"}
OWN: dict[str, Value] = {"method": "standalone", "client_initialisation": "own"}
NOBODY: Any = None
"""A context, where none is looked at."""


def states(store: MemoryStore, server_round: int = 3) -> list[dict[str, bytes]]:
    return [bits(store.load(k, f"{server_round}.1")) for k in range(4)]


def trained(**changes: Value) -> list[dict[str, bytes]]:
    """Return the clients' final models."""
    store = MemoryStore()
    run_digits(digits_experiment(**changes), store)
    return states(store)


def starts(*clients: int, **changes: Value) -> list[dict[str, bytes]]:
    """Return the models that clients start from, made in the order in which they come."""
    worker = Worker(digits_experiment(**changes), MemoryStore())
    made = []
    for client_id in clients:
        client: Any = worker.client(NOBODY, client_id)
        made.append(bits(model_arrays(client.model)))
        for parameter in client.model.parameters():
            parameter.data += 1  # what training leaves
    return made


# ------------------------------------------------------------------- with private models


def test_each_client_does_what_it_does_where_all_have_its_network() -> None:
    """So clients with one network start alike, as ever, and others leave no trace."""
    mixed = trained(**TURNS)
    mlp: dict[str, Value] = {"model": "mlp", "hidden_width": 8}
    alone = [
        trained(method="standalone", **mlp),
        trained(method="standalone", model="linear"),
        trained(method="standalone", **mlp, hidden_layers=1),
    ]
    assert mixed == [alone[0][0], alone[1][1], alone[2][2], alone[0][3]]
    assert len({tuple(sorted(found)) for found in mixed}) == 3


def test_clients_of_a_network_share_the_memory_of_one_model() -> None:
    worker = Worker(digits_experiment(**TURNS), MemoryStore())
    clients: list[Any] = [worker.client(NOBODY, k) for k in range(4)]
    assert clients[0].model is clients[3].model
    assert len({id(client.model) for client in clients}) == 3


def test_shared_start_is_the_networks_own_whoever_was_made_before() -> None:
    experiment = digits_experiment(**TURNS)
    data = federated_data(experiment)
    expected = [
        bits(model_arrays(network_model(experiment, data, index))) for index in range(3)
    ]
    assert starts(3, 0, 1, 2, **TURNS) == [expected[k] for k in (0, 0, 1, 2)]
    plain = experiment_model(digits_experiment(), data)
    assert expected[1] == bits(model_arrays(plain))


@pytest.mark.parametrize("models", ["", "linear, linear", "mlp:hidden-width=8"])
def test_own_starts_differ_and_are_the_same_bits_again(models: str) -> None:
    own = {**OWN, "client_models": models}
    found = starts(0, 1, 2, 3, **own)
    assert len({str(start) for start in found}) == 4
    assert starts(3, 1, 0, 2, **own) == [found[k] for k in (3, 1, 0, 2)]
    other_seed = starts(0, 1, 2, 3, **own, seed=1)
    assert not any(start in found for start in other_seed)
    assert len({str(s) for s in starts(0, 1, 2, 3, **{**own, **SHARED})}) == 1


def test_a_client_that_never_trained_is_scored_with_its_own_start() -> None:
    experiment = digits_experiment(**OWN)
    worker = Worker(experiment, MemoryStore())
    clients: list[Any] = [worker.client(NOBODY, k) for k in range(4)]
    for client_id in (2, 0, 3):
        clients[client_id].answer(Request(EVALUATE, client_id, {}, {}))
        data = federated_data(experiment)
        expected = network_model(experiment, data, 0, client_id)
        found = bits(model_arrays(clients[client_id].model))
        assert found == bits(model_arrays(expected))


def test_clients_data_and_draws_do_not_depend_on_the_start() -> None:
    """Learning nothing from the start: own and shared differ in the start alone."""
    own, shared = trained(**OWN), trained(method="standalone")
    # Client 0 draws its own start where the shared one is drawn.
    assert own[0] == shared[0]
    assert all(mine != other for mine, other in zip(own[1:], shared[1:], strict=True))


# ----------------------------------------------------------------------- whole run folders

RUN: dict[str, Value] = {
    **TURNS,
    "client_model_assignment": "random",
    "client_initialisation": "own",
    "num_clients": 6,
    "num_rounds": 4,
    "checkpoint_every": 2,
    "score_whole_test": True,
}


def run_folder(folder: Path, **changes: Value) -> Run:
    run_local(digits_experiment(**(RUN | changes)), folder)
    return load_run(folder)


def test_a_run_records_who_has_what(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    manifest = run.manifest
    assert manifest["networks"] == [entry.strip() for entry in THREE.split(",")]
    # By hand: 64 inputs, 10 classes.
    layer, last = 64 * 8 + 8, 8 * 10 + 10
    expected = [layer + 8 * 8 + 8 + last, 64 * 10 + 10, layer + last]
    assert manifest["network_parameters"] == expected
    who = manifest["client_networks"]
    assert len(who) == 6 and set(who) <= {0, 1, 2}
    for path in (run.path / "state").glob("*/*.safetensors"):
        size = sum(array.size for array in load_file(path).values())
        assert size == expected[who[int(path.parent.name)]]
    accuracies = run.client_values("evaluate", "accuracy")
    for found in accuracy_by_network(run):
        index = manifest["networks"].index(found.label)
        members = [accuracies[k] for k in range(6) if who[k] == index]
        assert found.accuracy == pytest.approx(sum(members) / len(members))
    whole = run.client_values("evaluate", "whole_test_loss")
    assert len(set(whole.values())) == 6


def test_a_server_without_a_model_writes_none(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    assert run.manifest["status"] == "finished"
    assert not (run.path / "model.safetensors").exists()
    for path in list_checkpoints(run.path / "checkpoints"):
        assert Checkpoint.load(path).arrays == {}
    alike = run_folder(tmp_path / "alike", client_models="", client_initialisation="shared")
    assert not (alike.path / "model.safetensors").exists()
    assert "networks" not in alike.manifest


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    run_folder(tmp_path / "whole")
    run_folder(tmp_path / "part", num_rounds=2)
    run_folder(tmp_path / "part", resume=True)
    runs = [load_run(tmp_path / name) for name in ("whole", "part")]
    assert runs[0].clients() == runs[1].clients()
    for key in ("networks", "network_parameters", "client_networks"):
        assert runs[0].manifest[key] == runs[1].manifest[key]
    whole, part = (client_states(tmp_path / name) for name in ("whole", "part"))
    assert whole and part == whole


def test_nodes_that_host_several_networks_give_the_same_bits(tmp_path: Path) -> None:
    lines = set()
    for nodes in (1, 2, 0):
        folder = tmp_path / str(nodes)
        run_local(digits_experiment(**RUN), folder, num_supernodes=nodes)
        lines.add((folder / "clients.jsonl").read_text())
    assert len(lines) == 1


def test_a_network_that_cannot_take_the_data_ends_it_before_it_starts(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="model cnn-3x3 needs images of at least") as told:
        run_folder(tmp_path / "run", client_models="linear, cnn-3x3")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"method": "fedavg", "client-models": "mlp"},
            "its clients share one.*of standalone",
        ),
        (
            {"method": "fedakd", "client-models": "mlp"},
            "method fedakd: its clients share",
        ),
        (
            {"method": "fedavg", "client-initialisation": "own"},
            "fedavg: its clients start from what the server holds; .* one of standalone, ",
        ),
        ({"client-model-assignment": "round-robin"}, "set another client-models too"),
        ({"client-models": "mlp", "fedpara": True}, "key fedpara = True cannot go with"),
        (
            {"client-models": "mlp", "decomposition": True},
            "key decomposition = True cannot go with client-models",
        ),
        (
            {"client-initialisation": "own", "decomposition": True},
            "key decomposition = True cannot go with client-initialisation = 'own'",
        ),
        ({"best-model-metric": "accuracy_mean"}, "key best-model-metric = .* has none"),
        ({"client-models": "mpl"}, "did you mean 'mlp'"),
        ({"client-models": "mlp:hiden-width=3"}, "did you mean 'hidden-width'"),
        (
            {"client-models": "mlp,linear", "client-model-assignment": "listed"},
            "num-clients = 10: client-models has 2 entries",
        ),
        ({"client-model-assignment": "list"}, "did you mean 'listed'"),
    ],
)
def test_refused_when_the_experiment_is_checked(
    changes: dict[str, Value], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Experiment.from_values({"method": "standalone", **changes})
    assert "\n" not in str(caught.value)


def test_who_needs_one_model_says_so_of_different_networks() -> None:
    experiment = digits_experiment(**TURNS)
    with pytest.raises(ConfigError, match="key client-models: clients have different"):
        experiment_model(experiment, federated_data(experiment))
