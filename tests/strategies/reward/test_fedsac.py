"""FedSAC: golden numbers, which neurons there are, and rounds of submodels."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.reward.fedsac import FedSACClient
from fedsuite.core.errors import ConfigError
from fedsuite.messages.records import ARRAYS, HELD, Arrays, Request
from fedsuite.models import build_model
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.groups import parameter_groups
from fedsuite.running.server_validation import ServerValidation
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.reward.fedsac import FedSAC, reputations
from fedsuite.strategies.reward.neurons import (
    HeldMean,
    held_neurons,
    hidden_layers,
    masks_of,
    scaled_importance,
    submodel,
)
from fedsuite.training.loop import TrainingOptions
from tests.strategies.reward.rewards import options
from tests.strategies.reward.tiny_network import federate, split_of, tiny

IMPORTANCE = np.array([10.0, 60.0, 0.0, 30.0])
CONTRIBUTIONS = {0: 0.2, 1: 0.5, 2: 0.8}


def test_golden_reputations() -> None:
    found = reputations(CONTRIBUTIONS, 2.0)
    assert found == pytest.approx({0: 30.119421, 1: 54.881164, 2: 100}, abs=1e-6)
    assert reputations(CONTRIBUTIONS, 0.0) == {0: 100, 1: 100, 2: 100}


def test_golden_importance() -> None:
    losses = 1 + np.array([0.05, 0.30, -0.2, 0.15])
    assert scaled_importance(losses, 1.0) == pytest.approx(IMPORTANCE)
    assert scaled_importance(np.full(4, 0.9), 1.0).tolist() == [25] * 4
    assert scaled_importance(np.array([np.nan, np.inf, 2.0]), 1.0).tolist() == [0, 0, 100]
    assert scaled_importance(np.array([1.0, 2.0]), np.inf).tolist() == [50, 50]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(30.119421, {0, 2}), (54.881164, {0, 2, 3}), (100, {0, 1, 2, 3}), (9.9, {2})],
)
def test_golden_submodels(limit: float, expected: set[int]) -> None:
    """From the least important up: running sums 0, 10, 40, 100 of neurons 2, 0, 3, 1."""
    assert set(np.flatnonzero(held_neurons(IMPORTANCE, limit))) == expected


def test_golden_aggregation() -> None:
    mean = HeldMean()
    weights = np.arange(1.0, 13.0).reshape(3, 4)
    for row, limit in zip(weights, (30.119421, 54.881164, 100), strict=True):
        mean.add({"w": row}, {"w": held_neurons(IMPORTANCE, limit)})
    assert mean.result({"w": np.zeros(4)})["w"].tolist() == [5, 10, 7, 10]


def test_a_neuron_that_nobody_held_stays() -> None:
    mean = HeldMean()
    mean.add({"w": np.full((2, 3), 4.0)}, {"w": np.array([True, False])})
    old = {"w": np.full((2, 3), 9.0, dtype=np.float32)}
    new = mean.result(old)["w"]
    assert new.tolist() == [[4] * 3, [9] * 3]
    assert new.dtype == np.float32


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=60),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_the_better_client_holds_all_that_the_other_holds(
    raw: list[float], first: float, second: float
) -> None:
    importance = scaled_importance(np.array(raw), 0.0)
    low, high = sorted((first, second))
    less, more = held_neurons(importance, low), held_neurons(importance, high)
    assert not (less & ~more).any()
    assert importance[less].sum() <= low + 1e-5
    assert held_neurons(importance, 100.0).all()


def fedsac(**changes: Any) -> FedSAC:
    keys = {"contributions": CONTRIBUTIONS, **options(3), **changes}
    validation = ServerValidation(tiny(), split_of(99, 40))
    return FedSAC(groups=parameter_groups(tiny()), validation=validation, **keys)


def test_a_neuron_is_a_row_with_its_normalisation() -> None:
    groups, arrays = parameter_groups(tiny()), model_arrays(tiny())
    (layer,) = hidden_layers(groups, arrays)
    assert layer.size == 4
    assert set(layer.names) == {
        "hidden.weight",
        "hidden.bias",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
    }
    masks = masks_of([layer], np.array([True, False, True, True]))
    model = tiny()
    load_arrays(model, submodel(arrays, masks))
    model.eval()
    features = split_of(0).features
    inside = model.norm(model.hidden(features))
    assert (inside[:, 1] == 0).all()
    assert (inside[:, [0, 2, 3]] != 0).any()


@pytest.mark.parametrize(
    ("name", "shape", "sizes"),
    [
        ("mlp", (1, 8, 8), [200, 200]),
        ("cnn-3x3", (1, 28, 28), [16, 32, 64, 128]),
        ("linear", (1, 8, 8), []),
    ],
)
def test_layers_of_the_networks(name: str, shape: tuple[int, ...], sizes: Any) -> None:
    model = build_model(name, shape, 10, 0)
    found = hidden_layers(parameter_groups(model), model_arrays(model))
    assert [layer.size for layer in found] == sizes


def test_every_array_of_a_resnet_but_the_head_goes_with_a_neuron() -> None:
    model = build_model("resnet18", (3, 32, 32), 10, 0)
    groups, arrays = parameter_groups(model), model_arrays(model)
    layers = hidden_layers(groups, arrays)
    named = [name for layer in layers for name in layer.names]
    assert len(named) == len(set(named))
    counters = {name for name in arrays if name.endswith("num_batches_tracked")}
    assert set(named) == set(arrays) - set(groups.head) - counters
    for layer in layers:
        assert {arrays[name].shape[0] for name in layer.names} == {layer.size}


def test_a_model_without_hidden_neurons_is_an_error() -> None:
    model = build_model("linear", (1, 8, 8), 10, 0)
    strategy = FedSAC(groups=parameter_groups(model), validation=Any)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the model has none: choose another model"):
        strategy.layers_of(model_arrays(model))


def test_no_difference_is_fedavg_with_equal_weights() -> None:
    trace, watch = federate(fedsac(fedsac_beta=0.0), FedSACClient, 3)
    plain, _ = federate(FedAvg(**options(3)), FedAvgClient, 3)
    for mine, theirs in zip(trace.arrays, plain.arrays, strict=True):
        assert list(mine) == list(theirs)
        for name, array in mine.items():
            np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-6)
    assert all(held.all() for sent in watch.sent.values() for held in sent[HELD].values())


def test_the_mean_is_plain_whatever_the_numbers_of_examples() -> None:
    trace, watch = federate(fedsac(), FedSACClient, 1, counts=(4, 8, 30))
    for name in ("hidden.weight", "head.bias"):
        mean = np.mean([watch.answered[1, k][ARRAYS][name] for k in range(3)], axis=0)
        np.testing.assert_allclose(trace.arrays[0][name], mean, rtol=1e-5)


def removed_losses(arrays: Arrays) -> tuple[list[float], float]:
    """Validation losses without each hidden neuron, and of the whole, by torch alone."""
    data = split_of(99, 40)

    def loss_without(neuron: int) -> float:
        model = tiny()
        load_arrays(model, arrays)
        model.eval()
        with torch.no_grad():
            inside = torch.tanh(model.norm(model.hidden(data.features)))
            if neuron >= 0:
                inside[:, neuron] = 0
            return float(nn.functional.cross_entropy(model.head(inside), data.labels))

    return [loss_without(v) for v in range(4)], loss_without(-1)


def test_importance_is_the_rise_of_the_loss_without_the_neuron() -> None:
    strategy = fedsac()
    trace, _ = federate(strategy, FedSACClient, 1)
    losses, loss = removed_losses(trace.arrays[0])
    rise = np.maximum(np.array(losses) - loss, 0)
    assert rise.any()
    np.testing.assert_allclose(strategy.importance, 100 * rise / rise.sum(), rtol=1e-3)


def test_submodels_train_and_are_averaged_neuron_by_neuron() -> None:
    strategy = fedsac(fedsac_beta=6.0)
    trace, watch = federate(strategy, FedSACClient, 2, weight_decay=0.1, optimizer="adam")
    importance = strategy.importance
    assert importance is not None
    limits = reputations(CONTRIBUTIONS, 6.0)
    held = np.array([held_neurons(importance, limits[k]) for k in range(3)])
    assert held[2].all()
    assert held[0].sum() < held[2].sum()
    old, new = trace.arrays
    # Of an absent neuron the bias of its normalisation alone would have a gradient.
    for name in ("hidden.weight", "norm.weight", "norm.bias", "norm.running_mean"):
        rows = np.array([watch.answered[2, k][ARRAYS][name] for k in range(3)])
        for k in range(3):
            sent = watch.sent[2, k][ARRAYS][name]
            np.testing.assert_array_equal(sent[held[k]], old[name][held[k]])
            assert not sent[~held[k]].any()
            assert watch.sent[2, k][HELD][name].tolist() == held[k].tolist()
            if "running" not in name:
                assert not rows[k][~held[k]].any()
        for neuron in range(4):
            mean = rows[held[:, neuron], neuron].mean(axis=0)
            np.testing.assert_allclose(new[name][neuron], mean, rtol=1e-5, atol=1e-7)
    head = np.mean([watch.answered[2, k][ARRAYS]["head.weight"] for k in range(3)], axis=0)
    np.testing.assert_allclose(new["head.weight"], head, rtol=1e-5)


def test_a_client_is_scored_with_its_submodel_of_the_new_model() -> None:
    strategy = fedsac(fedsac_beta=6.0)
    trace, watch = federate(strategy, FedSACClient, 2)
    assert strategy.importance is not None
    for k, limit in reputations(CONTRIBUTIONS, 6.0).items():
        held = held_neurons(strategy.importance, limit)
        scored = watch.scored[2, k]
        for name in ("hidden.weight", "norm.bias"):
            whole = trace.arrays[1][name]
            np.testing.assert_array_equal(scored[name][held], whole[held])
            assert not scored[name][~held].any()
        np.testing.assert_array_equal(scored["head.weight"], trace.arrays[1]["head.weight"])


def test_importance_is_measured_after_the_first_round_and_every_so_often() -> None:
    found = []
    for rounds in (1, 3, 4):
        strategy = fedsac(fedsac_interval=3)
        trace, _ = federate(strategy, FedSACClient, rounds)
        assert strategy.importance is not None
        found.append(strategy.importance.tolist())
    assert found[0] == found[1] != found[2]
    losses, loss = removed_losses(trace.arrays[3])
    rise = np.maximum(np.array(losses) - loss, 0)
    np.testing.assert_allclose(found[2], 100 * rise / rise.sum(), rtol=1e-3)


def test_contributions_are_accuracies_after_training_alone_from_the_start() -> None:
    strategy = fedsac(contributions=None, fedsac_alone_epochs=4)
    trace, _ = federate(strategy, FedSACClient, 2, learning_rate_decay=0.5)
    validation = ServerValidation(tiny(), split_of(99, 40))
    for k in range(3):
        data, model = split_of(k), tiny()
        steps = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            steps.zero_grad()
            nn.functional.cross_entropy(model(data.features), data.labels).backward()
            steps.step()
        assert strategy.known[k] == validation.accuracy(model_arrays(model))
    first, second = (report.train for report in trace.reports)
    size = sum(array.nbytes for array in trace.arrays[0].values())
    assert first.bytes_up == 2 * 3 * size
    assert second.bytes_up == 3 * size


def test_newcomers_train_alone_as_the_first_did() -> None:
    """The learning rate has not decayed for them, nor are they asked for local steps."""
    received = {ARRAYS: model_arrays(tiny())}
    found = []
    for server_round in (1, 9):
        work = TrainingOptions(local_steps=1, batch_size=0, learning_rate_decay=0.5)
        client = FedSACClient(tiny(), split_of(0), split_of(0), training=work)
        config = {"alone-epochs": 3, "server-round": server_round}
        reply = client.answer(Request("train.alone", 0, received, config))
        assert reply.metrics["num-steps"] == 3
        found.append(reply.arrays[ARRAYS])
    # The batches are in another order, which changes the last bits of their sums.
    for name, array in found[0].items():
        np.testing.assert_allclose(array, found[1][name], rtol=1e-4, atol=1e-6)


def test_a_newcomer_shows_its_contribution_when_it_first_takes_part() -> None:
    """Though it is alone in that, and the quorum is two."""
    strategy = fedsac(contributions={0: 0.2, 1: 0.5}, quorum=3)
    trace, _ = federate(strategy, FedSACClient, 1)
    assert set(strategy.known) == {0, 1, 2}
    assert len(trace.reports[0].train.rows) == 3


def test_one_that_never_took_part_is_scored_with_the_initial_model() -> None:
    strategy = fedsac(contributions=None, clients_per_round=1)
    _, watch = federate(strategy, FedSACClient, 2)
    never = {0, 1, 2} - set(strategy.known)
    assert never
    for k in never:
        for name, array in model_arrays(tiny()).items():
            np.testing.assert_array_equal(watch.scored[2, k][name], array)


@pytest.mark.parametrize(
    ("name", "value"),
    [("fedsac_beta", -1.0), ("fedsac_interval", 0), ("fedsac_alone_epochs", 0)],
)
def test_bad_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} = {value}: expected"):
        fedsac(**{name: value})
