"""Gradients without autograd: its bits, and only where the network is a plain chain."""

import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedsuite.clients import FedAvgClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, TRAIN, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.models.dense import linear, mlp
from fedsuite.training.dense_gradients import DenseGradients, dense_gradients
from fedsuite.training.evaluation import probe_model
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.losses import cross_entropy


def chain(*widths):
    layers = [nn.Flatten()]
    for number, (taken, given_) in enumerate(itertools.pairwise(widths)):
        layers += [nn.ReLU()] if number else []
        layers.append(nn.Linear(taken, given_))
    return nn.Sequential(*layers)


def autograd(model, features, labels):
    model.zero_grad()
    loss = functional.cross_entropy(model(features), labels)
    loss.backward()
    return float(loss.detach())


@example(widths=[28, 1, 12], rows=1, seed=0)
@example(widths=[1, 1, 40, 1, 40], rows=1, seed=1)
@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    rows=st.integers(1, 70),
    seed=st.integers(0, 2**31),
)
def test_loss_and_gradients_have_the_bits_of_autograd(widths, rows, seed):
    torch.manual_seed(seed)
    model = chain(*widths)
    features = torch.randn(rows, widths[0])
    labels = torch.randint(0, widths[-1], (rows,))
    expected_loss = autograd(model, features, labels)
    expected = [p.grad.clone() for p in model.parameters()]
    gradients = dense_gradients(model)
    # Twice: the second call writes over the memory of the first.
    gradients(torch.ones_like(features), labels)
    assert gradients(features, labels) == expected_loss
    assert all(
        torch.equal(p.grad, wanted)
        for p, wanted in zip(model.parameters(), expected, strict=True)
    )


def test_a_gradient_worked_out_by_hand():
    model = linear((2,), 2)
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    loss = dense_gradients(model)(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    # Both classes have probability 1/2: the slopes of the outputs are -1/2 and 1/2.
    assert loss == pytest.approx(0.6931472)
    assert model[1].weight.grad.tolist() == [[-0.5, -1.0], [0.5, 1.0]]
    assert model[1].bias.grad.tolist() == [-0.5, 0.5]


def test_features_are_not_written_into():
    features = torch.tensor([[-1.0, 2.0]])
    dense_gradients(chain(2, 3, 2))(features, torch.tensor([1]))
    assert features.tolist() == [[-1.0, 2.0]]


def test_a_label_that_no_class_has_is_refused_as_torch_does():
    with pytest.raises(IndexError, match="out of bounds"):
        dense_gradients(linear((2,), 2))(torch.ones(1, 2), torch.tensor([2]))


def with_hook(model):
    model[1].register_forward_hook(lambda *_: None)
    return model


def with_early_hook(model):
    model[1].register_forward_pre_hook(lambda *_: None)
    return model


def with_frozen_bias(model):
    model[1].bias.requires_grad_(False)
    return model


def with_gradient_hook(model):
    model[1].weight.register_hook(lambda gradient: gradient * 2)
    return model


class Doubled(nn.Sequential):
    def forward(self, features):
        return 2 * super().forward(features)


class DoubledLinear(nn.Linear):
    def forward(self, features):
        return 2 * super().forward(features)


OTHERS = {
    "convolution": nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten()),
    "no flatten": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
    "half of the axes": nn.Sequential(nn.Flatten(0, 1), nn.Linear(2, 2)),
    "flatten from another axis": nn.Sequential(nn.Flatten(2), nn.Linear(2, 2)),
    "tanh": nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
    "last relu": nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU()),
    "no bias": nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)),
    "double": chain(2, 2).double(),
    "own forward": Doubled(nn.Flatten(), nn.Linear(2, 2)),
    "own layer": nn.Sequential(nn.Flatten(), DoubledLinear(2, 2)),
    "forward hook": with_hook(chain(2, 2)),
    "early hook": with_early_hook(chain(2, 2)),
    "gradient hook": with_gradient_hook(chain(2, 2)),
    "frozen bias": with_frozen_bias(chain(2, 2)),
    "empty": nn.Sequential(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_other_networks_are_left_to_autograd(name):
    assert dense_gradients(OTHERS[name]) is None


class SpelledOut(FedAvgClient):
    """Overrides the hook by what it does anyway: autograd must be used."""

    def loss(self, model, features, labels):
        return functional.cross_entropy(model(features), labels)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_client_ends_with_the_same_bits_either_way(momentum):
    torch.manual_seed(3)
    data = Split(torch.randn(37, 1, 4, 5), torch.randint(0, 3, (37,)))
    model = mlp((1, 4, 5), 3, hidden_width=7)
    request = Request(TRAIN, 0, {ARRAYS: model_arrays(model)}, {"server-round": 2})
    training = TrainingOptions(local_epochs=3, batch_size=8, momentum=momentum)
    replies = [
        kind(model, data, data, training=training).answer(request)
        for kind in (FedAvgClient, SpelledOut)
    ]
    assert replies[0].metrics == replies[1].metrics
    assert replies[0].metrics["loss"] > 0
    for name, array in replies[0].arrays[ARRAYS].items():
        assert array.tobytes() == replies[1].arrays[ARRAYS][name].tobytes()


def test_a_client_uses_them_where_it_can(monkeypatch):
    used = []

    def noted(layers):
        used.append(DenseGradients(layers))
        return used[-1]

    monkeypatch.setattr("fedsuite.training.loop.DenseGradients", noted)
    data = Split(torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 0]))
    model = linear((2,), 2)
    request = Request(TRAIN, 0, {ARRAYS: model_arrays(model)}, {})
    FedAvgClient(model, data, data).answer(request)
    SpelledOut(model, data, data).answer(request)
    focal = TrainingOptions(loss="focal")
    FedAvgClient(model, data, data, training=focal).answer(request)
    assert len(used) == 1
    # The next client of the network has the same memory; another network has its own.
    FedAvgClient(model, data, data).answer(request)
    assert len(used) == 1
    model[1].bias.requires_grad_(False)
    FedAvgClient(model, data, data).answer(request)
    assert len(used) == 1
    other = linear((2,), 2)
    FedAvgClient(other, data, data).answer(request)
    assert len(used) == 2
    # So has a network with another layer in the old one's place.
    other[1] = nn.Linear(2, 2)
    before = other[1].weight.clone()
    FedAvgClient(other, data, data).answer(request)
    assert len(used) == 3
    assert not torch.equal(other[1].weight, before)


@pytest.mark.parametrize("rows", [1, 128, 300])
def test_a_probe_has_the_same_bits_either_way_and_leaves_no_trace(rows):
    torch.manual_seed(5)
    data = Split(torch.randn(rows, 6), torch.randint(0, 3, (rows,)))
    model = chain(6, 9, 3)
    found_loss, found = probe_model(model, data)
    assert all(p.grad is None for p in model.parameters())
    expected_loss, expected = probe_model(model, data, lambda *a: cross_entropy(*a))
    assert found_loss == expected_loss > 0
    assert list(found) == list(expected)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
