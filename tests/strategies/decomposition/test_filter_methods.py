"""Methods and clients inside the filter decomposition, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.clients.fair.fedeba import FedEBAPlusClient
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.messages.records import Reply, Request
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies import FedAvg, FilterDecomposition
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.strategies.fair.fedeba_plus import FedEBAPlus
from fedsuite.training.store import MemoryStore
from fedsuite.training.upload_noise import UploadNoise
from tests.helpers import bits
from tests.strategies.decomposition.factored import (
    ATOMS,
    CLIENTS,
    COEFFICIENTS,
    FAST,
    GROUPS,
    Recorder,
    Told,
    federate,
    initial,
    make_app,
    no_evaluation,
    total,
    wrap,
)

# ------------------------------------------------------------------ strategies and clients


def test_server_momentum_remembers_the_slow_arrays_step() -> None:
    """All move by 1; velocity 1, 1.5, 1.75 on fast arrays; 1, 1.5 at slow ones' uploads."""
    strategy = wrap(no_evaluation(server_momentum=0.5), coefficient_period=2)
    trace = federate(strategy, Recorder(make_app(Told)), 3)
    for name, moved in ((ATOMS, 4.25), (COEFFICIENTS, 2.5)):
        expected = initial()[name] + moved
        np.testing.assert_allclose(trace.arrays[2][name], expected, rtol=1e-6)


def test_fedprox_inside() -> None:
    def final(mu: float) -> dict[str, bytes]:
        inner = FedProx(proximal_mu=mu, min_available_nodes=1, fraction_evaluate=0.0)
        grid = Recorder(make_app(FedProxClient))
        trace = federate(wrap(inner, coefficient_period=2), grid, 3)
        assert not total(trace, "replies_rejected")
        return bits(trace.arrays[-1])

    plain = federate(wrap(coefficient_period=2), Recorder(make_app()), 3)
    assert final(0.0) == bits(plain.arrays[-1]) != final(1.0)


class Counting(Told):
    """Keeps how often it was trained, and moves by that."""

    KEEPS_STATE = True

    def on_train(self, request: Request) -> Reply:
        state = self.load_state(request)
        times = (0.0 if state is None else float(state["times"][0])) + 1
        self.move = lambda k, server_round, name: times  # type: ignore[method-assign]
        reply = super().on_train(request)
        kept = {"times": np.array([times])}
        stored = self.save_state(request, kept)
        kept["times"][:] = -1  # What is stored stays as it was.
        return Reply(reply.arrays, {**reply.metrics, **stored})


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("personal", [False, True])
def test_state_of_the_client_inside_survives(personal: bool, reuse: bool) -> None:
    strategy = wrap(coefficient_period=2, personal_atoms=personal)
    store = MemoryStore()
    trace = federate(strategy, Recorder(make_app(Counting, store=store, reuse=reuse)), 3)
    expected = initial()[ATOMS] + 1 + 2 + 3
    np.testing.assert_allclose(trace.arrays[2][ATOMS], expected, rtol=1e-6)
    for k in range(CLIENTS):
        version = strategy.client_versions[1000 + k]
        assert store.load(k, version)["inner/times"] == [3.0]


def test_only_a_client_with_something_new_stores_it() -> None:
    strategy = wrap(coefficient_period=3)
    federate(strategy, Recorder(make_app()), 4)
    assert set(strategy.client_versions.values()) == {"2.1"}


def test_layouts_give_the_same_bits_and_costs() -> None:
    """Nodes of one client, and two nodes of two clients."""
    found = []
    for nodes, options in (
        (CLIENTS, {}),
        (CLIENTS, {"identity": "partition", "num_clients": CLIENTS}),
        (2, {"identity": "partition", "num_clients": CLIENTS}),
    ):
        grid = Recorder(make_app(), nodes)
        strategy = wrap(no_evaluation(**options), coefficient_period=2)
        trace = federate(strategy, grid, 4)
        costs = [total(trace, f"true_bytes_{way}") for way in ("down", "up")]
        found.append((bits(trace.arrays[-1]), costs))
    assert found[0] == found[1] == found[2]


class Bold(Told):
    """Moves slow arrays by far more than fast ones."""

    move = staticmethod(lambda k, server_round, name: 1e-3 if name in FAST else 1e3)


def test_privacy_clips_what_leaves() -> None:
    """Of arrays that stay at home no part is clipped: the others keep their change."""
    privacy = UploadNoise(upload_noise_multiplier=1e-12, upload_clip=1.0)
    grid = Recorder(make_app(Bold, privacy=privacy))
    trace = federate(wrap(coefficient_period=2), grid, 2)
    first, second = (arrays[ATOMS] for arrays in trace.arrays)
    np.testing.assert_allclose(first, initial()[ATOMS], atol=1e-5)
    np.testing.assert_allclose(second - first, 1e-3, atol=1e-6)


# ------------------------------------------------------------------------------- refusals


def test_a_layer_serves_one_strategy() -> None:
    layer = FilterDecomposition(groups=GROUPS)
    FedAvg(layer=layer)
    with pytest.raises(ValueError, match="belongs to a FedAvg: make another one for each"):
        FedProx(layer=layer)


class Undeclared(FedEBAPlus):
    """A stranger's method that does not say what it sends."""

    CORRECTS_GRADIENTS = False


def test_a_method_that_sends_more_than_the_model_needs_frozen_coefficients() -> None:
    inner = Undeclared(min_available_nodes=1, fraction_evaluate=0.0)
    with pytest.raises(ConfigError, match=r"sends fair-gradient .* 'freeze'"):
        federate(wrap(inner, coefficient_period=2), Recorder(make_app(FedEBAPlusClient)), 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coefficient_period": 0}, "coefficient_period = 0: expected"),
        ({"personal_epochs": -1}, "personal_epochs = -1"),
        ({"fast_set": "head"}, "fast_set = 'head': expected"),
        ({"local_coefficients": "drop"}, "local_coefficients = 'drop'"),
        ({"groups": ParameterGroups(head=("a",), other=())}, "no decomposed layer"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrap(**options)


def test_legacy_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="legacy clients"):
        wrap(no_evaluation(wire="numpy"), coefficient_period=2)


class Silent(Standalone):
    """A stranger's method that does not say that its clients keep their models."""

    PRIVATE_MODELS = False


def test_a_method_without_a_shared_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="Silent is none"):
        federate(
            wrap(Silent(min_available_nodes=1), coefficient_period=2),
            Recorder(make_app()),
            1,
        )


def test_an_unwrapped_client_is_refused() -> None:
    """It would train and be scored with whatever its memory holds."""
    grid = Recorder(make_app(wrapped=False))
    with pytest.raises(RunError, match="array names differ"):
        federate(wrap(no_evaluation(max_failed_rounds=1), coefficient_period=2), grid, 1)
    with pytest.raises(RunError, match=r"train with fedsuite\.clients\.DecomposedClient"):
        federate(wrap(no_evaluation(max_failed_rounds=9), personal_atoms=True), grid, 1)


def test_a_wrapped_client_needs_the_wrapped_strategy() -> None:
    with pytest.raises(RunError, match=r"give the strategy layer=FilterDecomposition"):
        federate(no_evaluation(max_failed_rounds=1), Recorder(make_app()), 1)


def test_a_client_that_does_not_hold_what_the_server_thinks() -> None:
    """The server is told that all hold version 0; none does."""
    strategy = wrap(no_evaluation(max_failed_rounds=1), coefficient_period=2)
    held = {"held-by": [1000 + k for k in range(CLIENTS)], "held-versions": [0] * CLIENTS}
    strategy.layer.restore({"slow-version": 0, **held})
    words = r"counts on version 0 of 4 slow arrays, held is version -1 of 0"
    with pytest.raises(RunError, match=words):
        federate(strategy, Recorder(make_app()), 1)
