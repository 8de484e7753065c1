"""The steps of clients that train together are those of each alone."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import seeded, torch_stream
from fedsuite.data import Split
from fedsuite.data.specs import IGNORED
from fedsuite.training import cohort_steps
from fedsuite.training.base import FederatedClient
from fedsuite.training.cohort import Cohort
from fedsuite.training.cohort_steps import BatchedHook, Training, train_together
from fedsuite.training.loop import TrainingOptions, make_optimizer, mini_batches, run_steps
from fedsuite.training.stacked import StackedChain, StackedModule, stacked_network

ROWS = (7, 12, 3, 12)
"""Rows of each client: with mini-batches of 4 two, three, one and three steps."""


class Words(nn.Module):
    """Classes of each position of a sequence of words."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, words):
        return self.out(torch.relu(self.embed(words)))


def network(kind):
    with seeded(1):
        if kind == "convolution":
            layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)]
            return nn.Sequential(*layers)
        if kind == "words":
            return Words()
        hidden = [nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3)]
        layers = hidden if kind == "mlp" else [nn.Linear(16, 3)]
        return nn.Sequential(nn.Flatten(), *layers)


def rows(client, kind):
    draws = torch_stream(2, "rows", client_id=client)
    count = ROWS[client]
    if kind != "words":
        features = torch.randn(count, 1, 4, 4, generator=draws)
        return Split(features, torch.randint(3, (count,), generator=draws))
    words = torch.randint(5, (count, 6), generator=draws)
    labels = torch.randint(3, (count, 6), generator=draws)
    labels[:, 4:] = IGNORED
    return Split(words, labels)


def training(model, client, options, hook=None, after_step=lambda model, step: None):
    data = rows(client, "words" if isinstance(model, Words) else "images")
    batches = list(mini_batches(len(data), options, torch_stream(3, "b", 0, client)))
    hook = hook or BatchedHook()
    return Training(model, data, batches, options, 2, hook, after_step)


def corrected(model, hook, starts):
    """Correct the gradients of one client as its hook says."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            away = parameter.detach() - starts[name]
            parameter.grad.mul_(hook.keep)
            parameter.grad.add_(hook.offsets.get(name, 0.0))
            if hook.pulled is None or name in hook.pulled:
                parameter.grad.add_(hook.pull * away)


def assert_as_alone(model, options, hooks):
    """Compare with the loop of one client, from other arrays for each client."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}

    def begun(client):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(before[name] + 0.1 * client)

    together = []
    for client in range(len(ROWS)):
        begun(client)
        together.append(training(model, client, options, hooks[client]))
    summaries = train_together(stacked_network(model), together)
    for client, summary in enumerate(summaries):
        begun(client)
        alone = training(model, client, options)
        starts = {n: p.detach().clone() for n, p in model.named_parameters()}
        expected = run_steps(
            model,
            alone.data,
            iter(alone.batches),
            make_optimizer(model, options, 2),
            options.loss_function,
            partial(corrected, hook=hooks[client], starts=starts),
            clip_gradient_norm=options.clip_gradient_norm,
        )
        assert summary.num_steps == expected.num_steps == -(-ROWS[client] // 4)
        assert summary.loss == pytest.approx(expected.loss, abs=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(
                together[client].arrays[name], parameter.detach(), rtol=1e-5, atol=1e-6
            )


PLAIN = TrainingOptions(batch_size=4, learning_rate=0.1, learning_rate_decay=0.5)

OPTIONS = {
    "sgd": PLAIN,
    "momentum": replace(PLAIN, momentum=0.9, weight_decay=0.1),
    "adam": replace(PLAIN, optimizer="adam", learning_rate=0.01, weight_decay=0.1),
    "clipped": replace(PLAIN, clip_gradient_norm=0.3),
    "focal": replace(PLAIN, loss="focal"),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["linear", "mlp", "convolution", "words"])
def test_clients_of_other_sizes_take_the_steps_that_each_takes_alone(kind, name):
    assert_as_alone(network(kind), OPTIONS[name], [BatchedHook()] * len(ROWS))


@pytest.mark.parametrize("kind", ["mlp", "convolution"])
def test_each_client_has_its_own_correction(kind):
    model = network(kind)
    named = dict(model.named_parameters())
    first = next(iter(named))
    hooks = [
        BatchedHook(0.5 + k, {first: torch.full_like(named[first], k)}, 0.1 * k)
        for k in range(len(ROWS))
    ]
    assert_as_alone(model, replace(PLAIN, clip_gradient_norm=1.0), hooks)
    pulled = [replace(hook, pulled=frozenset({first})) for hook in hooks]
    assert_as_alone(model, PLAIN, pulled)


@pytest.mark.parametrize("kind", ["mlp", "convolution"])
def test_arrays_that_are_not_trained_stay(kind):
    model = network(kind)
    model[-1].bias.requires_grad_(False)
    assert_as_alone(model, PLAIN, [BatchedHook()] * len(ROWS))


def test_rows_are_gathered_in_parts_to_the_same_bits(monkeypatch):
    whole = [training(network("mlp"), client, PLAIN) for client in range(4)]
    model = whole[0].model
    train_together(stacked_network(model), whole)
    monkeypatch.setattr(cohort_steps, "ROWS_BYTES", 1)
    parts = [training(model, client, PLAIN) for client in range(4)]
    train_together(stacked_network(model), parts)
    for one, other in zip(whole, parts, strict=True):
        assert all(one.arrays[name].equal(other.arrays[name]) for name in one.arrays)


def test_a_watched_step_is_shown_to_those_who_take_it():
    model, seen = network("mlp"), []

    def look(client, model, step):
        seen.append((client, step, model[-1].bias.detach().clone()))

    watching = [
        training(model, k, PLAIN, BatchedHook(watched=2), partial(look, k))
        for k in range(4)
    ]
    train_together(stacked_network(model), watching)
    assert [(client, step) for client, step, _ in seen] == [(1, 2), (3, 2), (0, 2)]
    # The client with two steps has its final model then, the others have not.
    assert seen[2][2].equal(watching[0].arrays["3.bias"])
    assert not seen[0][2].equal(watching[1].arrays["3.bias"])


def test_networks_of_layers_are_computed_by_products_and_others_are_mapped():
    assert isinstance(stacked_network(network("mlp")), StackedChain)
    assert isinstance(stacked_network(network("convolution")), StackedModule)


def clients(model, cohort):
    cohort.add(model, torch.zeros(1, 1, 4, 4))
    made = [FederatedClient(model, rows(k, "images"), rows(k, "images")) for k in range(4)]
    for client in made:
        client.cohort = cohort
    return made


def test_an_error_of_a_computation_reaches_each_client(monkeypatch):
    model, cohort = network("mlp"), Cohort()

    def fails(network, trainings):
        raise MemoryError(len(trainings))

    monkeypatch.setattr("fedsuite.training.cohort.train_together", fails)

    def attempt(client):
        batches = [torch.arange(2)]
        with pytest.raises(MemoryError, match="4"):
            cohort.train(client, batches, PLAIN, 1)
        return client.client_id

    made = clients(model, cohort)
    assert cohort.together([partial(attempt, client) for client in made]) == [0] * 4


def test_what_a_client_freezes_is_not_frozen_for_the_next():
    model, cohort = network("mlp"), Cohort()
    before = model[-1].bias.detach().clone()
    made, marks = clients(model, cohort), []

    def train(client, frozen):
        model[-1].bias.requires_grad_(not frozen)
        cohort.train(client, [torch.arange(2)], PLAIN, 1)
        marks.append(model[-1].bias.requires_grad)
        model[-1].bias.requires_grad_(True)
        return model[-1].bias.equal(before)

    tasks = [partial(train, client, k % 2 == 0) for k, client in enumerate(made)]
    assert cohort.together(tasks) == [True, False, True, False]
    assert marks == [False, True, False, True]


def test_a_client_without_rows_waits_for_nobody():
    model, cohort = network("mlp"), Cohort()
    [client, *_] = clients(model, cohort)
    [summary] = cohort.together([lambda: cohort.train(client, [], PLAIN, 1)])
    assert (summary.num_steps, summary.loss) == (0, 0.0)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm2d(1), "it keeps statistics of its mini-batches"),
        (nn.Dropout(0.5), "vmap"),
    ],
)
def test_networks_whose_copies_differ_are_refused(layer, reason):
    model = nn.Sequential(layer, *network("convolution"))
    with pytest.raises(ConfigError, match=rf"key cohort: .*{reason}.*set cohort = 1"):
        Cohort().add(model, torch.zeros(1, 1, 4, 4))
