"""FedMPR: pruning by hand, FedAvg's plain mean bit for bit, and what stays zero."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.drift.fedmpr import FedMPRClient, largest, share_at
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Arrays, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedmpr import FedMPR
from fedsuite.training.loop import TrainingOptions
from tests.helpers import LAYOUTS, MatrixLoss, TamperingGrid, bits, matrix_app, play, run

OFF: dict[str, Any] = {"feature_dropout": 0.0, "feature_noise": 0.0}


def pruned(values: list[float], share: float) -> list[float]:
    tensor = torch.tensor(values)
    return [float(x) for x in tensor * largest([tensor], share)[0]]


def test_golden_pruning() -> None:
    one = pruned([0.9, -0.05, 0.4, -0.6, 0.02], 0.4)
    two = pruned([0.7, 0.3, -0.01, -0.2, 0.5], 0.4)
    assert one == pytest.approx([0.9, 0.0, 0.4, -0.6, 0.0])
    assert two == pytest.approx([0.7, 0.3, 0.0, 0.0, 0.5])
    assert np.mean([one, two], axis=0).tolist() == pytest.approx(
        [0.8, 0.15, 0.2, -0.3, 0.25]
    )
    assert pruned([0.9, -0.05, 0.4, -0.6, 0.02], share_at(0.4, 1, 2))[1:] == pytest.approx(
        [-0.05, 0.4, -0.6, 0.0]
    )
    assert [share_at(0.1, j, 3) for j in (1, 2, 3)] == pytest.approx(
        [0.034511, 0.067830, 0.1], abs=1e-6
    )


def test_ties_go_to_the_first_and_a_whole_number_of_weights_is_not_rounded_down() -> None:
    assert pruned([1.0, -1.0, 1.0, 1.0], 0.5) == [0.0, 0.0, 1.0, 1.0]
    assert sum(x == 0 for x in pruned([1.0] * 10, share_at(0.1, 2, 2))) == 1


@given(
    st.lists(st.floats(-9.0, 9.0, width=32), min_size=1, max_size=30),
    st.floats(0.0, 1.0),
)
def test_what_stays_is_not_smaller_than_what_goes(
    values: list[float], share: float
) -> None:
    mask = largest([torch.tensor(values)], share)[0].bool()
    sizes = torch.tensor(values).abs()
    assert int((~mask).sum()) == int(share * len(values) + 1e-9)
    if mask.any() and not mask.all():
        assert sizes[mask].min() >= sizes[~mask].max()


class MatrixMPRClient(MatrixLoss, FedMPRClient):
    pass


def test_a_round_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of equal entries is 0; clients with 1, 2 and 1 samples count alike."""
    monkeypatch.setattr("fedsuite.clients.drift.fedmpr.find_head", lambda m: ("", m))
    strategy = FedMPR(
        identity="partition",
        num_clients=3,
        min_available_nodes=1,
        prune_share=0.5,
        prune_what="all",
        **OFF,
    )
    trace = run(strategy, TamperingGrid(matrix_app(MatrixMPRClient), LAYOUTS["hosted"]))
    expected = [[0.0, 0.0], [7 / 3, 7 / 3]]
    np.testing.assert_allclose(trace.arrays[-1]["weight"], expected, rtol=1e-6)


def test_without_pruning_and_noise_it_is_the_plain_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: dict[str, Any] = {"partitioner": "dirichlet", "model": "mlp", "momentum": 0.5}
    off = {**OFF, "prune_share": 0.0}
    found = bits(play(method="fedmpr", **off, **keys).arrays[-1])
    for name in off:
        changed = {k: v for k, v in off.items() if k != name}
        assert bits(play(method="fedmpr", **changed, **keys).arrays[-1]) != found
    monkeypatch.setattr(FedAvg, "weight_of", lambda self, r: float(r.num_examples > 0))
    assert bits(play(method="fedavg", **keys).arrays[-1]) == found


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def trained(told: dict[str, Any], client_class: Any = FedMPRClient) -> tuple[Arrays, Any]:
    model = network()
    data = Split(torch.arange(16.0).reshape(8, 2) / 8, torch.tensor([0, 1] * 4))
    options = TrainingOptions(
        local_steps=6, batch_size=4, momentum=0.9, weight_decay=0.1, clip_gradient_norm=1.0
    )
    request = Request(
        "train", 0, {ARRAYS: model_arrays(model)}, {"server-round": 1, **told}
    )
    reply = client_class(model, data, data, training=options).answer(request)
    return dict(reply.arrays[ARRAYS]), reply.metrics


TOLD = {
    "prune-share": 0.5,
    "prune-stages": 3,
    "prune-what": "weights",
    "feature-dropout": 0.0,
    "feature-noise": 0.0,
}


def zeros(arrays: Arrays) -> dict[str, int]:
    return {name: int((array == 0).sum()) for name, array in arrays.items()}


def test_momentum_and_decay_revive_no_weight_and_biases_stay() -> None:
    arrays, metrics = trained(TOLD)
    found = zeros(arrays)
    assert found["0.weight"] + found["3.weight"] == 16
    assert found["0.bias"] == found["3.bias"] == found["1.weight"] == 0
    assert metrics["most-pruned"] == max(found["0.weight"], found["3.weight"]) / 16
    everything = zeros(trained({**TOLD, "prune-what": "all"})[0])
    counted = [n for n in everything if "running" not in n and "tracked" not in n]
    assert sum(everything[name] for name in counted) == 29
    assert zeros(trained({**TOLD, "prune-share": 1.0})[0])["3.weight"] == 16


def test_stages_differ_from_pruning_once() -> None:
    arrays = trained(TOLD)[0]
    once = trained({**TOLD, "prune-stages": 1})[0]
    assert bits(arrays) != bits(once)
    # A single stage prunes after training: what stays is what plain training makes.
    plain = trained(TOLD, FedAvgClient)[0]
    kept = once["0.weight"] != 0
    np.testing.assert_array_equal(once["0.weight"][kept], plain["0.weight"][kept])


def test_features_are_left_alone_outside_of_training() -> None:
    model = network()
    data = Split(torch.arange(16.0).reshape(8, 2) / 8, torch.tensor([0, 1] * 4))
    told = {**TOLD, "feature-dropout": 0.5, "feature-noise": 1.0}
    client = FedMPRClient(model, data, data)
    arrays = {ARRAYS: model_arrays(model)}
    client.answer(Request("train", 0, arrays, {"server-round": 1, **told}))
    after = client.evaluation().metrics
    assert client.evaluation().metrics == after
    assert not model[-1]._forward_pre_hooks  # type: ignore[index]
