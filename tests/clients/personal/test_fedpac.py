"""FedPAC's client: its steps, statistics, and what it leaves behind."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsuite.clients.personal.fedpac import (
    FedPACClient,
    class_means,
    feature_variance,
    scaled_means,
)
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Arrays, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.loop import TrainingOptions
from tests.helpers import bits


def small_client(**training: Any) -> tuple[FedPACClient, nn.Sequential, Split]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    features = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    data = Split(features, torch.tensor([0, 1, 0, 1, 1, 0]))
    options = TrainingOptions(
        **{"batch_size": 0, "local_steps": 1, "learning_rate": 0.5, **training}
    )
    return FedPACClient(model, data, data, training=options), model, data


PROTOTYPES: Arrays = {
    "means": np.array([[1.0, 2.0, 3.0], [50.0, 50.0, 50.0]], np.float32),
    "present": np.array([1, 0], np.uint8),
}


def asked(model: nn.Module, alignment: float = 2.0, **records: Arrays) -> Request:
    body = {n: a for n, a in model_arrays(model).items() if n.startswith("0.")}
    config = {"alignment": alignment, "head-epochs": 1, "head-learning-rate": 0.25}
    return Request("train", 0, {ARRAYS: body, **records}, config)


@pytest.mark.parametrize("prototypes", [None, PROTOTYPES])
def test_client_steps_are_the_papers(prototypes: Arrays | None) -> None:
    """Head by cross-entropy at its own rate; then the body, drawn to c_y of class 0."""
    client, model, data = small_client()
    _, twin, _ = small_client()
    before = twin[1](twin[0](data.features)).detach()
    records = {} if prototypes is None else {"prototypes": prototypes}
    reply = client.answer(asked(model, **records))

    loss = functional.cross_entropy(twin(data.features), data.labels)
    head = list(twin[2].parameters())
    for parameter, gradient in zip(head, torch.autograd.grad(loss, head), strict=True):
        parameter.data -= 0.25 * gradient
    z = twin[1](twin[0](data.features))
    loss = functional.cross_entropy(twin[2](z), data.labels)
    if prototypes is not None:
        gaps = (z - torch.tensor([1.0, 2.0, 3.0]))[data.labels == 0]
        loss = loss + 2.0 * gaps.square().sum() / (6 * 3)
    body = list(twin[0].parameters())
    for parameter, gradient in zip(body, torch.autograd.grad(loss, body), strict=True):
        parameter.data -= 0.5 * gradient

    expected = model_arrays(twin)
    found = {**reply.arrays[ARRAYS], **reply.arrays["head"]}
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)

    after = twin[1](twin[0](data.features)).detach().numpy()
    labels = data.labels.numpy()
    statistics = reply.arrays["statistics"]
    old = before.numpy().astype(np.float64)
    assert statistics["scaled-means"] == pytest.approx(
        scaled_means(old, labels, 2), abs=1e-5
    )
    assert statistics["prototypes"] == pytest.approx(
        class_means(after, labels, 2), abs=1e-5
    )
    assert statistics["counts"].tolist() == [3, 3]
    variance = feature_variance(old, labels, 2)
    assert reply.metrics["feature-variance"] == pytest.approx(variance, rel=1e-5)


def test_head_comes_with_the_message_else_it_is_the_initial_one() -> None:
    client, model, data = small_client()
    initial = model_arrays(model)
    head = {"2.weight": np.ones((2, 3), np.float32), "2.bias": np.ones(2, np.float32)}
    scores = []
    for records in ({"head": head}, {}):
        request = asked(model, **records)
        found = client.on_evaluate(Request("evaluate", 0, request.arrays))
        load_arrays(model, {**initial, **records.get("head", {})})
        assert found.metrics["loss"] == evaluate_model(model, data)[0]
        scores.append(found.metrics["loss"])
    assert scores[0] != scores[1]


def test_features_are_those_of_evaluation_and_move_no_statistic() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    _, _, data = small_client()
    client = FedPACClient(model, data, data)
    model.train()
    before = model_arrays(model)
    found = client.features()
    assert bits(model_arrays(model)) == bits(before)
    assert model.training
    model.eval()
    with torch.no_grad():
        expected = model[1](model[0](data.features)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_watching_features_leaves_no_trace() -> None:
    client, model, _ = small_client()
    client.answer(asked(model, prototypes=PROTOTYPES))
    assert not model[2]._forward_pre_hooks
    assert client._targets is None
    assert client._features is None


def test_client_without_examples() -> None:
    _, model, data = small_client()
    none = Split(data.features[:0], data.labels[:0])
    reply = FedPACClient(model, none, none).answer(asked(model))
    assert reply.metrics["feature-variance"] == 0
    assert not any(array.any() for array in reply.arrays["statistics"].values())
