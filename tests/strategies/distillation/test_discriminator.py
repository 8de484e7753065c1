"""FedAL's discriminator: the specification's numbers, scales, what it can learn."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.strategies.distillation.discriminator import (
    Discriminator,
    adversarial_gradient,
    discriminator_loss,
    scores,
)

F = torch.tensor([[[2.0, 0.0, -2.0]], [[0.0, 1.0, 0.0]]], dtype=torch.float64)
BOTH = torch.tensor([0, 1])
GRADIENTS = {
    2.0: [[0.130471, -0.109501, -0.020970], [-0.086346, 0.081980, 0.004367]],
    1.0: [[0.101952, -0.094086, -0.007866], [-0.127008, 0.135992, -0.008984]],
}


def golden_network() -> nn.Linear:
    network = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]]))
        network.bias.copy_(torch.tensor([0.1, -0.1]))
    return network


def drawn(num_clients: int, batch: int = 3, classes: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_clients, batch, classes)
    return 2 * torch.randn(shape, generator=generator, dtype=torch.float64)


def perceptron(classes: int = 4, labels: int = 3) -> nn.Module:
    discriminator = Discriminator(classes, labels, widths=(7, 5), seed=3)
    return discriminator.network.double()


def log_likelihood(network: Callable[[Tensor], Tensor], row: Tensor, label: int) -> float:
    """Return U_n of one sample, from its definition."""
    p = torch.exp(row / 2) / torch.exp(row / 2).sum()
    return float(torch.log_softmax(network(p), dim=0)[label])


def test_the_worked_example() -> None:
    network = golden_network()
    p = functional.softmax(F / 2, dim=2)[:, 0]
    np.testing.assert_allclose(
        p, [[0.665241, 0.244728, 0.090031], [0.274069, 0.451863, 0.274069]], atol=1e-6
    )
    h = functional.softmax(scores(network, F, 2.0), dim=2)[:, 0].detach()
    np.testing.assert_allclose(h, [[0.570956, 0.429044], [0.330987, 0.669013]], atol=1e-6)
    loss = discriminator_loss(network, F, BOTH, 2.0)
    assert float(loss) == pytest.approx((0.560443 + 0.401951) / 2, abs=1e-6)
    assert float(loss) == pytest.approx(0.481197, abs=1e-6)


@pytest.mark.parametrize("temperature", GRADIENTS)
def test_the_worked_example_s_gradients(temperature: float) -> None:
    found = adversarial_gradient(golden_network(), F, BOTH, temperature)[:, 0]
    np.testing.assert_allclose(found, GRADIENTS[temperature], atol=1e-6)


def test_a_step_of_the_worked_example_raises_the_objective() -> None:
    network = golden_network()
    discriminator_loss(network, F, BOTH, 2.0).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.5 * parameter.grad
    loss = float(discriminator_loss(network, F, BOTH, 2.0))
    assert loss == pytest.approx(0.469016, abs=1e-6)


def test_the_gradient_is_that_of_each_sample_alone() -> None:
    network, logits = perceptron(), drawn(3)
    found = adversarial_gradient(network, logits, torch.arange(3), 2.0)
    size = 1e-5
    for index in np.ndindex(*logits.shape):
        client, sample, position = index
        change = torch.zeros(4, dtype=torch.float64)
        change[position] = size
        row = logits[client, sample]
        up, down = (log_likelihood(network, row + s * change, client) for s in (1, -1))
        assert float(found[index]) == pytest.approx((up - down) / (2 * size), abs=1e-8)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_neither_batch_nor_clients_scale_it(clients: int, batch: int, seed: int) -> None:
    network = perceptron(labels=5)
    alone = drawn(1, 2, seed=seed)
    more = drawn(clients, batch + 2, seed=seed + 1)
    more[0, :2] = alone[0]
    few = adversarial_gradient(network, alone, torch.tensor([1]), 2.0)
    labels = torch.tensor([1, 0, 3, 4])[:clients]
    many = adversarial_gradient(network, more, labels, 2.0)
    torch.testing.assert_close(many[0, :2], few[0], rtol=0, atol=1e-12)


@given(st.integers(0, 99))
def test_rows_of_the_gradient_sum_to_nothing(seed: int) -> None:
    network = perceptron().float()
    found = adversarial_gradient(network, drawn(3, seed=seed).float(), torch.arange(3), 2.0)
    assert found.dtype == torch.float32
    assert float(found.sum(dim=2).abs().max()) < 1e-6
    assert float(found.abs().max()) > 0


def test_both_sides_move_against_each_other() -> None:
    logits = drawn(3).float()
    discriminator = Discriminator(4, 3, learning_rate=0.01, seed=1)
    labels = [0, 1, 2]
    before, _ = discriminator.step(logits.numpy(), labels)
    after = float(discriminator_loss(discriminator.network, logits, torch.arange(3), 2.0))
    assert after < before
    moved = logits.clone()
    moved[1] -= 0.5 * torch.from_numpy(discriminator.gradient(logits.numpy(), labels))[1]
    own = torch.tensor([1])
    loss_of = [
        float(discriminator_loss(discriminator.network, held[1:2], own, 2.0))
        for held in (logits, moved)
    ]
    assert loss_of[1] > loss_of[0]


def test_a_step_is_one_step_on_the_mean() -> None:
    # Plain gradient steps, so that the scale shows.
    logits = drawn(3).float()
    discriminator = Discriminator(4, 3, optimizer="sgd", learning_rate=0.7, seed=1)
    before = {n: p.detach().clone() for n, p in discriminator.network.named_parameters()}
    loss = discriminator_loss(discriminator.network, logits, torch.arange(3), 2.0)
    slopes = torch.autograd.grad(loss, list(discriminator.network.parameters()))
    discriminator.step(logits.numpy(), [0, 1, 2])
    for (name, parameter), slope in zip(
        discriminator.network.named_parameters(), slopes, strict=True
    ):
        torch.testing.assert_close(parameter.detach(), before[name] - 0.7 * slope)


def test_labels_say_whose_row_is_whose() -> None:
    logits = drawn(2).float().numpy()
    swapped = Discriminator(4, 2, seed=1).gradient(logits[::-1].copy(), [1, 0])
    np.testing.assert_array_equal(
        Discriminator(4, 2, seed=1).gradient(logits, [0, 1]), swapped[::-1]
    )


def test_who_is_absent_has_no_part() -> None:
    logits = drawn(3).float().numpy()
    discriminator = Discriminator(4, 3, seed=1)
    loss, _ = discriminator.step(logits[1:], [1, 2])
    fresh = Discriminator(4, 3, seed=1)
    wanted = discriminator_loss(
        fresh.network, torch.tensor(logits[1:]), torch.tensor([1, 2]), 2.0
    )
    assert loss == pytest.approx(float(wanted))


def test_equal_clients_cannot_be_told_apart() -> None:
    generator = np.random.default_rng(0)
    discriminator = Discriminator(4, 5, learning_rate=1e-2, seed=0)
    labels = list(range(5))
    for _ in range(400):
        row = generator.normal(size=(1, 16, 4)).astype(np.float32)
        loss, accuracy = discriminator.step(np.repeat(row, 5, axis=0), labels)
    assert loss == pytest.approx(math.log(5), abs=1e-2)
    assert accuracy == pytest.approx(0.2, abs=1e-9)


def test_a_discriminator_without_an_opinion_sends_nothing() -> None:
    discriminator = Discriminator(4, 3, seed=0)
    with torch.no_grad():
        last = discriminator.network[-1]
        last.weight.zero_()
        last.bias.zero_()
    logits = drawn(3).float().numpy()
    assert not discriminator.gradient(logits, [0, 1, 2]).any()
    loss, _ = discriminator.step(logits, [0, 1, 2])
    assert loss == pytest.approx(math.log(3), abs=1e-7)


def test_with_uniform_output_the_clients_gradients_cancel() -> None:
    network = perceptron()
    last = list(network.children())[-1]
    with torch.no_grad():
        # Weights that sum to nothing over labels leave the output uniform at p = 0 alone;
        # a linear read-out whose labels agree leaves it uniform everywhere.
        last.weight.copy_(last.weight[:1].expand_as(last.weight))
        last.bias.zero_()
    same = drawn(1).expand(3, -1, -1).contiguous()
    found = adversarial_gradient(network, same, torch.arange(3), 2.0)
    assert float(found.sum(dim=0).abs().max()) < 1e-12


def test_the_best_discriminator_is_bayes() -> None:
    # max U = JSD - log N, and h of a vector is its share of the clients' frequencies.
    frequencies = np.array([[7, 1, 1, 1], [1, 7, 1, 1], [2.5, 2.5, 2.5, 2.5]]) / 10
    mean = frequencies.mean(axis=0)
    divergence = float((frequencies * np.log(frequencies / mean)).sum() / 3)
    assert divergence == pytest.approx(0.214948, abs=1e-6)
    counts = (frequencies * 20).round().astype(int)
    rows = np.eye(4, dtype=np.float32) * 6
    logits = np.stack([np.repeat(rows, count, axis=0) for count in counts])
    discriminator = Discriminator(4, 3, learning_rate=1e-3, temperature=1.0, seed=0)
    for _ in range(1500):
        loss, _ = discriminator.step(logits, [0, 1, 2])
    assert loss == pytest.approx(math.log(3) - divergence, abs=1e-4)
    h = torch.softmax(scores(discriminator.network, torch.tensor(logits), 1.0), dim=2)
    np.testing.assert_allclose(h[0, 0].detach(), [0.6667, 0.0952, 0.2381], atol=5e-3)


@pytest.mark.parametrize(("optimizer", "learns"), [("adam", True), ("sgd", False)])
def test_the_paper_s_step_needs_adam(optimizer: str, learns: bool) -> None:
    generator = np.random.default_rng(0)
    biases = generator.normal(size=(20, 1, 10))
    discriminator = Discriminator(10, 20, optimizer=optimizer, seed=0)
    labels = list(range(20))
    losses = []
    for _ in range(1000 if learns else 300):
        shared = generator.normal(size=(1, 32, 10))
        noise = generator.normal(size=(20, 32, 10))
        logits = (3 * shared + 1.5 * biases + 0.3 * noise).astype(np.float32)
        losses.append(discriminator.step(logits, labels)[0])
    assert losses[0] == pytest.approx(math.log(20), abs=0.02)
    last = float(np.mean(losses[-50:]))
    assert (last < 2.7) if learns else (last > 2.95)


def test_a_discriminator_goes_on_where_it_stopped() -> None:
    logits = drawn(3).float().numpy()
    whole, first = (Discriminator(4, 3, seed=2) for _ in range(2))
    for _ in range(3):
        whole.step(logits, [0, 1, 2])
        first.step(logits, [0, 1, 2])
    second = Discriminator(4, 3, seed=9)
    second.step(logits[:, :1], [0, 1, 2])
    second.restore(first.state())
    for discriminator in (whole, second):
        discriminator.step(logits, [0, 1, 2])
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, second.state()[name])
    assert set(whole.state()) == set(second.state())


def test_its_size_is_the_paper_s() -> None:
    sizes = {
        n: sum(p.numel() for p in Discriminator(10, n).network.parameters())
        for n in (10, 15, 20)
    }
    assert sizes == {10: 11_757, 15: 13_087, 20: 14_417}


def test_its_seed_is_its_own() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (Discriminator(4, 3, seed=s).state() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(one["network/0.weight"], other["network/0.weight"])
