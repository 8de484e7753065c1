"""A server that holds a model of each network and averages within it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS, load_class
from fedsuite.core.settings import part
from fedsuite.engines.local import run_local
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.messages.records import ARRAYS, EVALUATE, TRAIN, Arrays
from fedsuite.models.arrays import model_arrays
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.results.reader import load_run
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.validation import ClientReply, Expected, spec_of
from fedsuite.running.server_parts import server_networks
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.store import MemoryStore
from tests.helpers import (
    bits,
    digits_experiment,
    for_client,
    play,
    run_digits,
    set_arrays,
)

TURNS: dict[str, Value] = {
    "client_models": "linear, mlp:hidden-width=8",
    "client_model_assignment": "round-robin",
}


class PerNetworkMean(FedAvg):
    """FedAvg within each network."""

    networks: ServerNetworks = part(help="the clients' networks")

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        own = self._own(arrays, client_ids)
        expected = {
            k: Expected({ARRAYS: spec_of(records[ARRAYS])}) for k, records in own.items()
        }
        return Exchange(TRAIN, client_ids, own=own, expected_of=expected)

    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids, own=self._own(arrays, client_ids))

    def begin_aggregation(self, arrays: Arrays) -> None:
        self.taken: list[ClientReply] = []

    def take(self, reply: ClientReply) -> None:
        self.taken.append(reply)

    def aggregate(self, arrays: Arrays) -> Arrays | None:
        parts = self.networks.split(arrays)
        for index, held in enumerate(parts):
            members = self.networks.networks.clients_of(index)
            mine = [reply for reply in self.taken if reply.client_id in members]
            parts[index] = self.average(mine) or held
        return self.networks.join(parts)

    def _own(
        self, arrays: Arrays, client_ids: Sequence[int]
    ) -> dict[int, dict[str, Arrays]]:
        parts = self.networks.split(arrays)
        return {k: {ARRAYS: parts[self.networks.networks.of_client[k]]} for k in client_ids}


@pytest.fixture
def per_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the strategy above in FedAvg's place, whose keys it has."""
    replaced = METHODS["fedavg"].strategy

    def load(side: str, path: str) -> type:
        return PerNetworkMean if path == replaced else load_class(side, path)

    monkeypatch.setattr("fedsuite.strategies.load_class", load)


def test_mean_within_one_network_is_fedavg(request: pytest.FixtureRequest) -> None:
    expected = bits(play().arrays[-1])
    request.getfixturevalue("per_network")
    for models in ("", "linear"):
        found = bits(play(client_models=models).arrays[-1])
        assert found == {f"0/{name}": array for name, array in expected.items()}


@pytest.mark.usefixtures("per_network")
def test_means_within_two_networks_by_hand() -> None:
    """After round 1 a network holds the mean of what its clients trained alone."""
    changes = {**TURNS, "partitioner": "power-law", "num_rounds": 1}
    store = MemoryStore()
    run_digits(digits_experiment(method="standalone", **changes), store)
    trace = play(**changes)
    assert trace.reports[0].train is not None and trace.reports[0].evaluate is not None
    count = {int(r["client"]): r["num_examples"] for r in trace.reports[0].train.rows}
    assert len(set(count.values())) > 1 and len(trace.reports[0].evaluate.rows) == 4
    names = []
    for index, members in enumerate([(0, 2), (1, 3)]):
        models = [store.load(k, "1.1") for k in members]
        weights = [float(count[k]) for k in members]
        for name in models[0]:
            mean = np.average([m[name] for m in models], axis=0, weights=weights)
            found = trace.arrays[-1][f"{index}/{name}"]
            np.testing.assert_allclose(found, mean, atol=1e-6)
    names = {
        f"{index}/{name}" for index, k in ((0, 0), (1, 1)) for name in store.load(k, "1.1")
    }
    assert set(trace.arrays[-1]) == names


@pytest.mark.usefixtures("per_network")
def test_a_reply_of_another_network_is_not_used() -> None:
    experiment = digits_experiment(**TURNS, num_rounds=1)
    stranger = {"1.weight": np.ones((10, 64), "f"), "1.bias": np.ones(10, "f")}
    trace = run_digits(experiment, tamper=for_client(1, "hosted", set_arrays(**stranger)))
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1
    assert "array names differ" in rejection.reason
    assert np.abs(trace.arrays[-1]["0/1.weight"]).max() < 0.9


@pytest.mark.usefixtures("per_network")
def test_what_a_client_claims_is_limited_whatever_its_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = PerNetworkMean.__post_init__

    def limited(self: PerNetworkMean) -> None:
        self.max_examples = 5.0
        made(self)

    monkeypatch.setattr(PerNetworkMean, "__post_init__", limited)
    train = play(client_models="linear", num_rounds=1).reports[0].train
    assert [row["num_examples"] for row in train.rows] == [5.0] * 4


@pytest.mark.usefixtures("per_network")
def test_what_the_server_writes_and_resumes_from(tmp_path: Path) -> None:
    def files(name: str, **more: Value) -> bytes:
        changes = {**TURNS, "num_rounds": 2, "checkpoint_every": 1, **more}
        run_local(digits_experiment(**changes), tmp_path / name)
        return (tmp_path / name / "model.safetensors").read_bytes()

    whole = files("whole")
    files("part", num_rounds=1)
    assert files("part", resume=True) == whole
    manifest = load_run(tmp_path / "whole").manifest
    assert manifest["networks"] == ["linear", "mlp:hidden-width=8"]
    assert manifest["client_networks"] == [0, 1, 0, 1]
    files("one", client_models="", client_model_assignment="random")
    assert "networks" not in load_run(tmp_path / "one").manifest


@pytest.mark.usefixtures("per_network")
def test_initial_arrays_of_the_server_are_the_clients() -> None:
    experiment = digits_experiment(**TURNS)
    data = federated_data(experiment)
    networks = server_networks(experiment, data)
    assert networks is not None
    for index, initial in enumerate(networks.initial):
        assert bits(initial) == bits(model_arrays(network_model(experiment, data, index)))
        assert bits(model_arrays(networks.build(index))) == bits(initial)
        assert list(networks.split(networks.join(networks.initial))[index]) == list(initial)


@pytest.mark.usefixtures("per_network")
def test_own_starts_are_nothing_to_a_server_that_holds_the_models() -> None:
    with pytest.raises(ConfigError, match="start from what the server holds"):
        digits_experiment(client_models="linear", client_initialisation="own")
    with pytest.raises(ConfigError, match="its clients share one model") as caught:
        digits_experiment(method="fedprox", client_models="linear")
    assert "choose one of fedavg, standalone," in str(caught.value)


@pytest.mark.usefixtures("per_network")
@pytest.mark.parametrize("need", ["groups", "validation"])
def test_what_is_of_one_model_refuses_several(
    need: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PerNetworkMean, "PARTS", PerNetworkMean.PARTS | {need})
    with pytest.raises(ConfigError, match=r"share one model; .* one of standalone"):
        digits_experiment(client_models="linear")
