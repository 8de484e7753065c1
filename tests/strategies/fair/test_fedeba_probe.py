"""What FedEBA+'s probe measures, and that it and a client's training leave no trace."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsuite.clients.fair.fedeba import FedEBAPlusClient
from fedsuite.core.errors import RunError
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, GRADIENT, PROBE, TRAIN, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.training.loop import TrainingOptions
from tests.strategies.fair.probing import assert_same, client_of, network, split_of


@pytest.mark.parametrize("with_gradient", [False, True])
def test_probe_leaves_no_trace(with_gradient: bool) -> None:
    client, untouched = client_of(FedEBAPlusClient), client_of(FedEBAPlusClient)
    arrays = model_arrays(network())
    arrays["1.running_mean"] = arrays["1.running_mean"] + np.float32(0.5)
    received = {name: array.copy() for name, array in arrays.items()}
    probe = Request(PROBE, 0, {ARRAYS: arrays}, {"report-gradient": with_gradient})
    before = torch.random.get_rng_state()
    assert isinstance(client, FedEBAPlusClient)
    first, second = client.on_probe(probe), client.on_probe(probe)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.metrics == second.metrics
    assert_same(arrays, received)
    assert_same(model_arrays(client.model), received)
    assert all(parameter.grad is None for parameter in client.model.parameters())
    train = Request(TRAIN, 0, {ARRAYS: arrays}, {"report-first-step": True})
    reply, reference = client.on_train(train), untouched.on_train(train)
    assert reply.metrics == reference.metrics
    for name in (ARRAYS, "first-step"):
        assert_same(reply.arrays[name], reference.arrays[name])


def test_probed_gradient_is_that_of_the_probed_loss() -> None:
    client = client_of(FedEBAPlusClient)
    assert isinstance(client, FedEBAPlusClient)
    arrays = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in model_arrays(network()).items()
    }
    client.model.double()
    data = client.train_data
    client.train_data = Split(data.features.double(), data.labels)

    def loss_at(step: float) -> float:
        moved = {**arrays, "4.bias": arrays["4.bias"] + np.array([step, 0.0])}
        reply = client.on_probe(Request(PROBE, 0, {ARRAYS: moved}))
        return float(reply.metrics["loss-before"])  # type: ignore[arg-type]

    config: Any = {"report-gradient": True}
    reply = client.on_probe(Request(PROBE, 0, {ARRAYS: arrays}, config))
    gradient = reply.arrays[GRADIENT]
    slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
    assert gradient["4.bias"][0] == pytest.approx(slope, rel=1e-6)
    # Names and dtypes are the model's; what is not trained has gradient 0.
    assert {n: a.dtype for n, a in gradient.items()} == {
        n: a.dtype for n, a in arrays.items()
    }
    assert not gradient["1.running_var"].any()
    assert not gradient["1.num_batches_tracked"].any()


def test_frozen_parameters_stay_and_have_no_gradient() -> None:
    client = client_of(FedEBAPlusClient)
    assert isinstance(client, FedEBAPlusClient)
    client.model[0].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    arrays = model_arrays(network())
    config: Any = {"report-gradient": True}
    gradient = client.on_probe(Request(PROBE, 0, {ARRAYS: arrays}, config)).arrays[GRADIENT]
    assert not gradient["0.weight"].any()
    fair = {name: np.ones_like(array) for name, array in arrays.items()}
    train = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": fair}, {"alpha": 0.5})
    trained = client.on_train(train).arrays[ARRAYS]
    np.testing.assert_array_equal(trained["0.weight"], arrays["0.weight"])
    assert (trained["4.weight"] != arrays["4.weight"]).all()


def test_a_client_keeps_neither_fair_gradient_nor_first_step() -> None:
    client = client_of(FedEBAPlusClient)
    arrays = model_arrays(network())
    plain = Request(TRAIN, 0, {ARRAYS: arrays})
    expected = client.on_train(plain).arrays[ARRAYS]
    fair = {name: np.ones_like(array) for name, array in arrays.items()}
    aligned = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": fair}, {"alpha": 0.5})
    assert (client.on_train(aligned).arrays[ARRAYS]["4.bias"] != expected["4.bias"]).any()
    assert_same(client.on_train(plain).arrays[ARRAYS], expected)

    config: Any = {"report-first-step": True}
    client.on_train(Request(TRAIN, 0, {ARRAYS: arrays}, config))
    held = [
        value
        for value in vars(client).values()
        if isinstance(value, dict) and value is not client.heard
    ]
    assert held == [{}, {}]


class Noisy(FedEBAPlusClient):
    """Its loss draws from torch's global stream, as augmentation does."""

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return super().loss(model, features + 0.1 * torch.randn(features.shape), labels)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_a_probe_of_a_random_loss_is_repeatable(with_gradient: bool) -> None:
    client = client_of(Noisy)
    assert isinstance(client, Noisy)
    arrays = model_arrays(network())
    probe = Request(PROBE, 0, {ARRAYS: arrays}, {"report-gradient": with_gradient})
    before = torch.random.get_rng_state()
    first = client.on_probe(probe)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(1)
    assert client.on_probe(probe).metrics == first.metrics


def test_a_parameter_that_the_loss_does_not_reach_follows_the_fair_gradient() -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.spare = nn.Parameter(torch.ones(2))

    data = split_of(0)
    training = TrainingOptions(local_steps=4, batch_size=8, learning_rate=0.1)
    client = FedEBAPlusClient(Spare(), data, data, training=training)
    arrays = model_arrays(client.model)
    config: Any = {"report-gradient": True}
    gradient = client.on_probe(Request(PROBE, 0, {ARRAYS: arrays}, config)).arrays[GRADIENT]
    assert not gradient["spare"].any()
    fair = {**gradient, "spare": np.array([1.0, -1.0], np.float32)}
    request = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": fair}, {"alpha": 0.5})
    trained = client.on_train(request).arrays[ARRAYS]["spare"]
    np.testing.assert_allclose(trained, [1 - 4 * 0.1 * 0.5, 1 + 4 * 0.1 * 0.5], rtol=1e-6)


def test_a_fair_gradient_without_alpha_is_refused() -> None:
    arrays = model_arrays(network())
    request = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": arrays})
    with pytest.raises(RunError, match="no number alpha"):
        client_of(FedEBAPlusClient).on_train(request)


def test_first_step_has_first_parameters_and_last_buffers() -> None:
    client, one_step = client_of(FedEBAPlusClient), client_of(FedEBAPlusClient)
    one_step.training = TrainingOptions(local_steps=1, batch_size=8)
    arrays = model_arrays(network())
    config: Any = {"report-first-step": True}
    reply = client.on_train(Request(TRAIN, 0, {ARRAYS: arrays}, config))
    expected = one_step.on_train(Request(TRAIN, 0, {ARRAYS: arrays})).arrays[ARRAYS]
    buffers = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    for name, array in reply.arrays["first-step"].items():
        source = reply.arrays[ARRAYS] if name in buffers else expected
        np.testing.assert_array_equal(array, source[name], err_msg=name)
    config["rescale-first-step"] = True
    scaled = client.on_train(Request(TRAIN, 0, {ARRAYS: arrays}, config)).arrays[
        "first-step"
    ]
    first = arrays["4.bias"] + 4 * (expected["4.bias"] - arrays["4.bias"])
    np.testing.assert_allclose(scaled["4.bias"], first, rtol=1e-6)
    np.testing.assert_array_equal(
        scaled["1.running_var"], reply.arrays[ARRAYS]["1.running_var"]
    )


class Curved(FedEBAPlusClient):
    """Another training loss: what is reported must be of it too."""

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return 2.0 * super().loss(model, features, labels)


def test_reported_losses_are_of_the_loss_that_is_trained_on() -> None:
    arrays = model_arrays(network())
    config: Any = {"report-gradient": True}
    request = Request(PROBE, 0, {ARRAYS: arrays}, config)
    plain, curved = client_of(FedEBAPlusClient), client_of(Curved)
    assert isinstance(plain, FedEBAPlusClient)
    assert isinstance(curved, Curved)
    one, two = plain.on_probe(request), curved.on_probe(request)
    assert two.metrics["loss-before"] == pytest.approx(
        2 * float(one.metrics["loss-before"])  # type: ignore[arg-type]
    )
    np.testing.assert_allclose(
        two.arrays[GRADIENT]["4.bias"], 2 * one.arrays[GRADIENT]["4.bias"], rtol=1e-5
    )
