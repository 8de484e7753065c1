"""Personal atoms: they stay at home, and the shared model does not know of them."""

from typing import Any

import numpy as np
import pytest

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.messages.records import ARRAYS, EVALUATE, Arrays
from fedsuite.models.arrays import load_arrays
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.store import MemoryStore
from tests.helpers import Trace, bits
from tests.strategies.decomposition.factored import (
    ATOMS,
    CLIENTS,
    Recorder,
    Told,
    arrays_in,
    client_data,
    federate,
    initial,
    make_app,
    tiny_model,
    wrap,
)

HEAD = ["5.weight", "5.bias"]


def personal_run(
    num_rounds: int = 3,
    *,
    reuse: bool = True,
    inner: Any = None,
    client_class: type[FedAvgClient] = FedAvgClient,
    **options: Any,
) -> tuple[Trace, Recorder, MemoryStore, Any]:
    store = MemoryStore()
    grid = Recorder(make_app(client_class, store=store, reuse=reuse))
    strategy = wrap(
        inner or FedAvg(min_available_nodes=1), **{"personal_atoms": True, **options}
    )
    return federate(strategy, grid, num_rounds), grid, store, strategy


def personal(store: MemoryStore, strategy: Any, client: int) -> Arrays:
    """Return a client's personal arrays as they are now."""
    arrays = store.load(client, strategy.client_versions[1000 + client])
    prefix = "personal/"
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def uploads(grid: Recorder, num_rounds: int) -> list[dict[str, bytes]]:
    return [
        bits(arrays_in(reply)[ARRAYS])
        for server_round in range(1, num_rounds + 1)
        for reply in grid.replies_of(server_round)
    ]


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("period", [1, 2])
def test_uploads_do_not_depend_on_the_personal_phase(period: int, reuse: bool) -> None:
    """Specification's test 12: the bits of what phase G uploads, with and without L."""
    _, with_personal, *_ = personal_run(reuse=reuse, coefficient_period=period)
    plain = Recorder(make_app(reuse=reuse))
    strategy = wrap(FedAvg(min_available_nodes=1), coefficient_period=period)
    if period == 1:
        plain = Recorder(make_app(reuse=reuse, wrapped=False))
        federate(FedAvg(min_available_nodes=1), plain, 3)
    else:
        federate(strategy, plain, 3)
    assert uploads(with_personal, 3) == uploads(plain, 3)


def test_personal_atoms_differ_and_never_leave() -> None:
    _, grid, store, strategy = personal_run(2)
    atoms = [personal(store, strategy, k)[ATOMS] for k in range(CLIENTS)]
    assert len({a.tobytes() for a in [*atoms, initial()[ATOMS]]}) == CLIENTS + 1
    secret = {a.tobytes() for a in atoms}
    for reply in grid.replies:
        for arrays in arrays_in(reply).values():
            assert not secret & set(bits(arrays).values())
    for k in range(CLIENTS):
        assert list(personal(store, strategy, k)) == [ATOMS]


def test_they_survive_a_round_without_the_client() -> None:
    inner = FedAvg(min_available_nodes=1, clients_per_round=1, seed=2)
    trace, _, store, strategy = personal_run(4, inner=inner)
    trained = {
        row["client"]: report.server_round
        for report in trace.reports
        for row in report.train.rows
    }
    assert len(trained) > 1
    rows = {row["client"]: row for row in trace.reports[-1].evaluate.rows}
    assert min(trained.values()) < 4
    for client, server_round in trained.items():
        assert strategy.client_versions[client] == f"{server_round}.1"
        model = tiny_model()
        own = personal(store, strategy, client - 1000)
        load_arrays(model, {**trace.arrays[-1], **own})
        loss, _ = evaluate_model(model, client_data(client - 1000))
        assert rows[client]["loss"] == loss


def test_training_starts_from_the_personal_atoms_against_received_coefficients() -> None:
    """Redone by hand for one client: plain steps on the atoms, all else as received."""
    trace, _, store, strategy = personal_run(2, personal_epochs=1)
    import torch
    from torch.nn import functional

    from fedsuite.core.rng import torch_stream

    model, data = tiny_model(), client_data(0)
    atoms = initial()[ATOMS]
    received = [initial(), trace.arrays[0]]
    for server_round in (1, 2):
        load_arrays(model, {**received[server_round - 1], ATOMS: atoms})
        stream = torch_stream(0, "personal-batches", server_round, 0)
        order = torch.randperm(8, generator=stream)
        parameter = dict(model.named_parameters())[ATOMS]
        velocity = torch.zeros_like(parameter)
        for batch in (order[:4], order[4:]):
            loss = functional.cross_entropy(model(data.features[batch]), data.labels[batch])
            (gradient,) = torch.autograd.grad(loss, [parameter])
            velocity = 0.9 * velocity + gradient
            with torch.no_grad():
                parameter -= 0.05 * velocity
        atoms = parameter.detach().numpy().copy()
    np.testing.assert_allclose(personal(store, strategy, 0)[ATOMS], atoms, atol=1e-6)


def test_scores_are_of_the_personal_and_of_the_shared_model() -> None:
    trace, _, store, strategy = personal_run(3)
    for k, row in enumerate(trace.reports[-1].evaluate.rows):
        model, data = tiny_model(), client_data(k)
        load_arrays(model, trace.arrays[-1])
        loss, accuracy = evaluate_model(model, data)
        assert (row["global_loss"], row["global_accuracy"]) == (loss, accuracy)
        load_arrays(model, personal(store, strategy, k))
        loss, accuracy = evaluate_model(model, data)
        assert (row["loss"], row["accuracy"]) == (loss, accuracy)
        assert row["loss"] != row["global_loss"]
        assert "refreshed_accuracy" not in row
    assert all("personal_loss" in row for row in trace.reports[-1].train.rows)


def test_before_its_first_training_a_client_has_the_initial_atoms() -> None:
    inner = FedAvg(min_available_nodes=1, clients_per_round=1, seed=2)
    trace, *_ = personal_run(1, inner=inner)
    (trained,) = [row["client"] for row in trace.reports[0].train.rows]
    for k, row in enumerate(trace.reports[0].evaluate.rows):
        if k + 1000 != trained:
            model = tiny_model()
            load_arrays(model, {**trace.arrays[0], ATOMS: initial()[ATOMS]})
            assert row["loss"] == evaluate_model(model, client_data(k))[0]


def test_epochs_of_the_personal_atoms() -> None:
    """0 is what the shared model gets: two steps of four samples, less than an epoch."""
    atoms = []
    for epochs in (0, 1, 2):
        _, _, store, strategy = personal_run(1, personal_epochs=epochs)
        atoms.append(personal(store, strategy, 1)[ATOMS].tobytes())
    assert len(set(atoms)) == 3


def test_refreshing_is_scored_and_not_kept() -> None:
    plain, *_ = personal_run(3)
    refreshed, _, store, strategy = personal_run(3, refresh_epochs=5)
    for before, after in zip(plain.reports, refreshed.reports, strict=True):
        for old, new in zip(before.evaluate.rows, after.evaluate.rows, strict=True):
            assert {k: new[k] for k in old} == old
            assert new["refreshed_loss"] != new["loss"]
    assert bits(plain.arrays[-1]) == bits(refreshed.arrays[-1])
    _, _, kept, others = personal_run(3)
    for k in range(CLIENTS):
        assert bits(personal(store, strategy, k)) == bits(personal(kept, others, k))


def test_a_head_of_ones_own() -> None:
    shared, *_ = personal_run(3)
    trace, _, store, strategy = personal_run(3, personal_head="local")
    heads = [personal(store, strategy, k) for k in range(CLIENTS)]
    assert all(list(head) == [ATOMS, *HEAD] for head in heads)
    assert len({head[HEAD[0]].tobytes() for head in heads}) == CLIENTS
    assert bits(trace.arrays[-1]) == bits(shared.arrays[-1])
    for k, row in enumerate(trace.reports[-1].evaluate.rows):
        model = tiny_model()
        load_arrays(model, {**trace.arrays[-1], **heads[k]})
        assert row["loss"] == evaluate_model(model, client_data(k))[0]


def test_the_methods_correction_belongs_to_the_shared_model() -> None:
    """In round 1 all start alike: FedProx of any mu trains the same personal atoms."""

    def atoms(client_class: Any, inner: Any) -> list[bytes]:
        store = MemoryStore()
        strategy = wrap(inner, personal_atoms=True)
        federate(strategy, Recorder(make_app(client_class, store=store)), 1)
        return [personal(store, strategy, k)[ATOMS].tobytes() for k in range(CLIENTS)]

    plain = FedAvg(min_available_nodes=1)
    heavy = FedProx(proximal_mu=10.0, min_available_nodes=1)
    assert atoms(FedAvgClient, plain) == atoms(FedProxClient, heavy)


def test_persisting_clients_train_personal_atoms_on_what_was_received() -> None:
    """The client's own drifted coefficients are no part of the personal model.

    Clients move the shared model by what they are told, so that it is the same in both.
    """
    found = []
    for mode in ("discard", "persist"):
        _, _, store, strategy = personal_run(
            4, client_class=Told, coefficient_period=4, local_coefficients=mode
        )
        found.append([bits(personal(store, strategy, k)) for k in range(CLIENTS)])
        drifted = store.load(0, strategy.client_versions[1000]).get("drifted/0.bias")
        assert (drifted is None) == (mode == "discard")
    assert found[0] == found[1]


def test_evaluation_stores_nothing() -> None:
    _, grid, _, strategy = personal_run(2, refresh_epochs=1)
    assert set(strategy.client_versions.values()) == {"2.1"}
    for reply in grid.replies_of(2, EVALUATE):
        assert "stored-state" not in reply.content["metrics"]
