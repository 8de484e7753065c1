"""What CFFL, CGSV, FedAVE and FedSAC have in common: own models, resume, bad rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import fedsuite
from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.reward.cffl import CFFLClient
from fedsuite.clients.reward.fedave import FedAVEClient
from fedsuite.clients.reward.fedsac import FedSACClient
from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS as REGISTRY
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, STATISTICS
from fedsuite.models.arrays import model_arrays
from fedsuite.models.groups import parameter_groups
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.running.server_validation import ServerValidation
from fedsuite.strategies import load_strategy
from fedsuite.strategies.reward.reputation import RewardStrategy
from tests.helpers import Tamper, bits, set_metrics
from tests.strategies.reward.rewards import options
from tests.strategies.reward.tiny_network import federate, split_of, tiny

CLIENTS: dict[str, type[Any]] = {
    "cffl": CFFLClient,
    "cgsv": FedAvgClient,
    "fedave": FedAVEClient,
    "fedsac": FedSACClient,
}
OPEN = {"cffl": {"cffl_clip": 0.0}, "fedave": {"fedave_loss_batch": 4}}
SHARPER = {
    "cgsv": {"altruism": 0.1, "reputation_memory": 0.0},
    "fedsac": {"fedsac_beta": 6.0},
}
SMALL = {
    "model": "mlp",
    "hidden-width": 16,
    "num-clients": 4,
    "clients-per-round": 3,
    "partitioner": "power-law",
    "batch-size": 32,
    "checkpoint-every": 1,
    "report": False,
}
SOME = {
    "cffl": {"cffl-threshold": 0.97, "upload-share": 0.5},
    "fedave": {"fedave-loss-batch": 16},
    "fedsac": {"fedsac-interval": 3, "fedsac-alone-epochs": 2},
}


def strategy_of(method: str, **changes: Any) -> RewardStrategy:
    strategy = load_strategy(REGISTRY[method])
    needed: dict[str, Any] = {}
    if strategy.takes("groups"):
        needed["groups"] = parameter_groups(tiny())
    if strategy.takes("validation"):
        needed["validation"] = ServerValidation(tiny(), split_of(99, 40))
    made = strategy(**needed, **{**options(3), **OPEN.get(method, {}), **changes})
    assert isinstance(made, RewardStrategy)
    return made


def run_tiny(method: str, num_rounds: int, tamper: Tamper | None = None, **changes: Any):
    strategy = strategy_of(method, **changes)
    trace, watch = federate(
        strategy, CLIENTS[method], num_rounds, tamper=tamper, tampered_rounds=(2,)
    )
    return strategy, trace, watch


def spoil(*clients: int) -> Tamper:
    """Return what makes these clients' replies useless."""

    def tamper(replies: list[Message]) -> list[Message]:
        for k in clients:
            change = set_metrics(num_examples=float("nan"))
            change(replies[k].content, f"client-{k}.")
        return replies

    return tamper


def state_bits(strategy: FederatedStrategy) -> tuple[dict[str, bytes], Any]:
    arrays, scalars = strategy.state()
    return bits(arrays), (scalars, strategy.client_versions)


@pytest.mark.parametrize("method", CLIENTS)
def test_resumed_is_uninterrupted(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {**SMALL, **SOME.get(method, {}), "method": method}
    short = fedsuite.run({**keys, "num-rounds": 3, "run-name": "short"})
    longer = fedsuite.resume(short.path, num_rounds=6)
    whole = fedsuite.run({**keys, "num-rounds": 6, "run-name": "whole"})
    files = [run.path / "model.safetensors" for run in (longer, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()
    for phase, name in (("evaluate", "accuracy"), ("train", "reputation")):
        found = longer.client_values(phase, name)
        assert found == whole.client_values(phase, name)
        assert found


@pytest.mark.parametrize("method", CLIENTS)
def test_all_that_is_remembered_is_restored(method: str) -> None:
    strategy, _, _ = run_tiny(method, 2, clients_per_round=2)
    again = strategy_of(method)
    again.restore(*strategy.state())
    again.client_versions = strategy.client_versions
    assert state_bits(again) == state_bits(strategy)
    assert bits(again.initial) == bits(model_arrays(tiny()))


@pytest.mark.parametrize("method", CLIENTS)
def test_a_round_below_the_quorum_changes_nothing(method: str) -> None:
    before, _, after_one = run_tiny(method, 1, quorum=2)
    strategy, trace, watch = run_tiny(method, 2, spoil(0, 2), quorum=2)
    assert len(trace.reports[1].train.rejections) == 2
    assert state_bits(strategy) == state_bits(before)
    assert bits(trace.arrays[1]) == bits(trace.arrays[0])
    for k in range(3):
        assert bits(watch.scored[2, k]) == bits(after_one.scored[1, k])


@pytest.mark.parametrize("method", CLIENTS)
def test_the_round_goes_on_without_a_bad_reply(method: str) -> None:
    strategy, trace, watch = run_tiny(method, 3, spoil(1))
    _, _, before = run_tiny(method, 2, spoil(1))
    assert [row["client"] for row in trace.reports[1].train.rows] == [0, 2]
    if method != "fedsac":
        assert sum(strategy.reputation.values()) == pytest.approx(1)
        # Neither punished nor rewarded for a reply that was lost.
        assert bits(before.scored[2, 1]) == bits(before.scored[1, 1])
    assert len(trace.reports[2].train.rows) == 3
    for arrays in watch.scored.values():
        assert all(np.isfinite(array).all() for array in arrays.values())


@pytest.mark.parametrize("method", ["cffl", "cgsv", "fedave"])
def test_statistics_are_everybodys_mean(method: str) -> None:
    """Weighted by examples, and never cut, clipped, or scaled as updates are."""
    strategy = strategy_of(method)
    counts = (6, 12, 18)
    trace, watch = federate(strategy, CLIENTS[method], 3, counts=counts)
    record = STATISTICS if method == "cffl" else ARRAYS
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        told = [watch.answered[3, k][record][name] for k in range(3)]
        mean = np.average(told, axis=0, weights=counts)
        for k in range(3):
            scored = watch.scored[3, k][name]
            np.testing.assert_allclose(scored, mean, rtol=1e-5)
            assert scored.dtype == told[k].dtype
        np.testing.assert_allclose(trace.arrays[2][name], mean, rtol=1e-5)
    # Three steps a round; FedAVE's first round changes no model.
    steps = 6 if method == "fedave" else 9
    assert watch.scored[3, 0]["norm.num_batches_tracked"] == steps


@pytest.mark.parametrize("method", CLIENTS)
def test_clients_have_models_of_their_own(method: str) -> None:
    _, trace, watch = run_tiny(method, 4, **SHARPER.get(method, {}))
    models = {str(bits(watch.scored[4, k])) for k in range(3)}
    assert len(models) > 1
    columns = trace.reports[3].train
    shares = columns.column("reward_share")
    assert len(shares) == len(columns.column("reputation")) == 3
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("method", CLIENTS)
def test_clients_on_one_node_get_their_own_too(method: str) -> None:
    apart = federate(strategy_of(method), CLIENTS[method], 3)
    together = federate(strategy_of(method), CLIENTS[method], 3, num_nodes=2)
    for key, arrays in apart[1].scored.items():
        assert bits(together[1].scored[key]) == bits(arrays)


@pytest.mark.parametrize("method", CLIENTS)
def test_what_cannot_go_with_own_models_is_refused(method: str) -> None:
    with pytest.raises(
        ValueError, match="wire = 'numpy': each client has a model of its own"
    ):
        strategy_of(method, wire="numpy", identity="node", num_clients=None)
    with pytest.raises(ConfigError, match=r"server_momentum = 0\.5 has no effect"):
        run_tiny(method, 1, server_momentum=0.5)


def test_cffl_refuses_noise_on_what_it_chose() -> None:
    with pytest.raises(ConfigError, match="noise would undo the choice"):
        Experiment.from_values({"method": "cffl", "upload-noise-multiplier": 0.1})


@pytest.mark.parametrize("method", ["cffl", "fedave", "fedsac"])
def test_a_tenth_of_the_data_is_the_servers(method: str) -> None:
    assert Experiment.from_values({"method": method})["server-validation-fraction"] == 0.1
    assert Experiment.from_values({"method": "cgsv"})["server-validation-fraction"] == 0
