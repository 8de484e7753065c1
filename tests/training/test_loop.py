"""Mini-batches, optimiser, probe, evaluation, device."""

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.models.arrays import model_arrays
from fedsuite.models.evaluation_mode import EVALUATION_BATCH
from fedsuite.training import evaluation
from fedsuite.training.evaluation import chosen_rows, evaluate_model, probe_model
from fedsuite.training.loop import (
    TrainingOptions,
    make_optimizer,
    mini_batches,
    num_steps,
    resolve_device,
    run_steps,
)

sizes = st.integers(1, 40)


def batches(num_examples: int, seed: int = 0, **options: int) -> list[list[int]]:
    stream = torch_stream(seed, "batches")
    given_options = TrainingOptions(**options)
    return [b.tolist() for b in mini_batches(num_examples, given_options, stream)]


@given(sizes, st.integers(0, 50), st.integers(1, 4), st.integers(0, 9))
def test_each_epoch_is_a_permutation(n: int, size: int, epochs: int, seed: int) -> None:
    found = batches(n, seed, batch_size=size, local_epochs=epochs)
    per_epoch = -(-n // (size or n))
    assert len(found) == epochs * per_epoch
    for start in range(0, len(found), per_epoch):
        epoch = found[start : start + per_epoch]
        assert sorted(chain(*epoch)) == list(range(n))
        assert [len(batch) for batch in epoch[:-1]] == [size] * (per_epoch - 1)
        assert len(epoch[-1]) == n - size * (per_epoch - 1)


@given(sizes, st.integers(0, 50), st.integers(1, 30))
def test_exactly_so_many_steps(n: int, size: int, steps: int) -> None:
    found = batches(n, batch_size=size, local_steps=steps, local_epochs=7)
    assert len(found) == steps
    per_epoch = -(-n // (size or n))
    for start in range(0, steps, per_epoch):
        epoch = list(chain(*found[start : start + per_epoch]))
        assert len(set(epoch)) == len(epoch)


def test_steps_count_as_epochs_do() -> None:
    assert batches(10, batch_size=4, local_steps=6) == batches(
        10, batch_size=4, local_epochs=2
    )


def test_epochs_and_seeds_differ() -> None:
    two = batches(30, batch_size=0, local_epochs=2)
    assert two[0] != two[1]
    assert two != batches(30, seed=1, batch_size=0, local_epochs=2)


def test_no_samples_no_batches() -> None:
    assert batches(0, local_steps=5) == []


# Optimiser


def one_parameter(value: float = 1.0) -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def test_learning_rate_decays_every_so_many_rounds() -> None:
    options = TrainingOptions(
        learning_rate=0.8, learning_rate_decay=0.5, learning_rate_decay_every=3
    )
    rates = [options.learning_rate_at(t) for t in range(1, 8)]
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]


def test_learning_rate_decays_from_round_2_on() -> None:
    options = TrainingOptions(learning_rate=0.8, learning_rate_decay=0.5)
    rates = [
        make_optimizer(one_parameter(), options, r).param_groups[0]["lr"] for r in (1, 2, 3)
    ]
    assert rates == [0.8, 0.4, 0.2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1 - 0.1 * 2 - 0.1 * 2),
        ({"momentum": 0.5}, 1 - 0.1 * 2 - 0.1 * (2 + 0.5 * 2)),
        ({"weight_decay": 1.0}, 0.7 - 0.1 * (2 + 0.7)),
        ({"optimizer": "adam"}, 1 - 0.1 - 0.1),
    ],
)
def test_two_steps_by_hand(options: dict[str, object], expected: float) -> None:
    """The gradient is 2 in both steps."""
    model = one_parameter()
    data = Split(torch.full((1, 1), 2.0), torch.zeros(1))
    optimizer = make_optimizer(model, TrainingOptions(**options), 1)  # type: ignore[arg-type]
    steps = iter([torch.tensor([0])] * 2)
    seen: list[int] = []
    summary = run_steps(
        model,
        data,
        steps,
        optimizer,
        lambda m, x, y: m(x).mean(),
        after_step=lambda m, step: seen.append(step),
    )
    assert model.weight.item() == pytest.approx(expected)
    assert summary.num_steps == 2
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("norm", "expected"), [(0.0, [-3.0, -4.0]), (100.0, [-3.0, -4.0]), (5.0, [-1.5, -2.0])]
)
def test_clipping_is_of_all_parameters_together_and_after_the_correction(
    norm: float, expected: list[float]
) -> None:
    """The gradient (1, 1) is corrected to (6, 8), of norm 10; a step of 0.5."""
    model = nn.Sequential(one_parameter(0.0), one_parameter(0.0))
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    model.register_parameter("frozen", frozen)

    def correct(corrected: nn.Module) -> None:
        for parameter, more in zip(corrected.parameters(), (0.0, 5.0, 7.0), strict=True):
            if parameter.grad is not None:
                parameter.grad += more

    run_steps(
        model,
        Split(torch.ones(1, 1), torch.zeros(1)),
        iter([torch.tensor([0])]),
        make_optimizer(model, TrainingOptions(learning_rate=0.5), 1),
        lambda m, x, y: m[0].weight.sum() + m[1].weight.sum(),
        correct,
        clip_gradient_norm=norm,
    )
    found = [model[0].weight.item(), model[1].weight.item()]
    assert found == pytest.approx(expected, rel=1e-6)


def test_weight_decay_is_not_clipped() -> None:
    """Gradient 2 clipped to 1, and 3 x 1 of weight decay: 1 - 0.1 x 4."""
    model = one_parameter()
    options = TrainingOptions(weight_decay=3.0, clip_gradient_norm=1.0)
    run_steps(
        model,
        Split(torch.full((1, 1), 2.0), torch.zeros(1)),
        iter([torch.tensor([0])]),
        make_optimizer(model, options, 1),
        lambda m, x, y: m(x).mean(),
        clip_gradient_norm=options.clip_gradient_norm,
    )
    assert model.weight.item() == pytest.approx(0.6)


def test_frozen_parameters_stay() -> None:
    model = nn.Sequential(one_parameter(), one_parameter())
    model[0].weight.requires_grad_(False)
    data = Split(torch.ones(1, 1), torch.zeros(1))
    optimizer = make_optimizer(model, TrainingOptions(), 1)
    run_steps(
        model, data, iter([torch.tensor([0])]), optimizer, lambda m, x, y: m(x).mean()
    )
    assert model[0].weight.item() == 1.0
    assert model[1].weight.item() == pytest.approx(0.9)


def test_loss_is_the_mean_over_samples_not_over_batches() -> None:
    data = Split(torch.tensor([[1.0], [1.0], [7.0]]), torch.zeros(3))
    model = one_parameter()
    optimizer = make_optimizer(model, TrainingOptions(learning_rate=1e-9), 1)
    parts = iter([torch.tensor([0, 1]), torch.tensor([2])])
    summary = run_steps(model, data, parts, optimizer, lambda m, x, y: m(x).mean())
    assert summary.loss == pytest.approx(3.0)


def test_gradient_is_corrected_before_the_step() -> None:
    def double(model: nn.Module) -> None:
        model.weight.grad.mul_(2)  # type: ignore[union-attr, operator]

    model = one_parameter()
    data = Split(torch.ones(1, 1), torch.zeros(1))
    optimizer = make_optimizer(model, TrainingOptions(), 1)
    part = iter([torch.tensor([0])])
    run_steps(model, data, part, optimizer, lambda m, x, y: m(x).mean(), before_step=double)
    assert model.weight.item() == pytest.approx(0.8)


# Probe and evaluation


def network() -> nn.Sequential:
    """Layers with buffers, random draws, and modules in another mode than the rest."""
    generator = torch.Generator().manual_seed(1)
    layers = [nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        model[1].running_mean.fill_(0.5)
    model.train()
    model[1].eval()
    return model


def some_data(count: int = 7) -> Split:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(count, 3, generator=generator)
    return Split(features, torch.arange(count) % 2)


def snapshot(model: nn.Module, data: Split) -> list[object]:
    state = [
        (name, tensor.numpy().tobytes()) for name, tensor in model.state_dict().items()
    ]
    gradients = [p.grad is None or p.grad.tolist() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    inputs = [data.features.tolist(), data.labels.tolist()]
    return [state, gradients, modes, torch.get_rng_state().tolist(), inputs]


@pytest.mark.parametrize("look", [probe_model, evaluate_model])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_looking_leaves_no_trace(look: Callable, with_gradients: bool) -> None:
    model, data = network(), some_data()
    if with_gradients:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
    before = snapshot(model, data)
    first = look(model, data)
    assert snapshot(model, data) == before
    second = look(model, data)
    assert first[0] == second[0]


def test_mode_is_put_back_after_an_error() -> None:
    model = network()
    with pytest.raises(RuntimeError):
        evaluate_model(model, Split(torch.zeros(2, 9), torch.zeros(2, dtype=torch.int64)))
    assert [module.training for module in model] == [True, False, True, True]


@pytest.mark.parametrize("part", [1, 3, 1024])
def test_probe_equals_autograd_on_the_full_batch(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many parts the data is looked at in."""
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", part)
    model, data = network(), some_data()
    loss, gradients = probe_model(model, data)
    model.eval()
    expected = functional.cross_entropy(model(data.features), data.labels)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert list(gradients) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert gradients[name] == pytest.approx(parameter.grad.numpy(), abs=1e-6)


def test_probe_leaves_frozen_parameters_out() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    names = list(probe_model(model, some_data())[1])
    assert "0.weight" not in names
    assert "0.bias" in names


def test_probe_of_nothing_is_zero() -> None:
    loss, gradients = probe_model(network(), some_data(0))
    assert loss == 0.0
    assert all(not np.any(gradient) for gradient in gradients.values())


@pytest.mark.parametrize("part", [1, 2, 1024])
def test_evaluation_by_hand(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits (x, 0): correct where x > 0 has label 0; loss log(1 + exp(-x)) there."""
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", part)
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [0.0]]))
    data = Split(torch.tensor([[1.0], [-1.0], [2.0]]), torch.tensor([0, 0, 1]))
    loss, accuracy = evaluate_model(model, data)
    expected = (np.log1p(np.exp(-1)) + np.log1p(np.exp(1)) + np.log1p(np.exp(2))) / 3
    assert loss == pytest.approx(expected)
    assert accuracy == pytest.approx(1 / 3)
    assert evaluate_model(model, Split(torch.empty(0, 1), torch.empty(0).long())) == (0, 0)


# Device


@pytest.mark.parametrize(("there", "found"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_that_this_process_sees(
    there: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device("auto") == torch.device(found)
    assert resolve_device("cpu") == torch.device("cpu")


def test_cuda_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("cuda") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device = 'cuda': this process sees no GPU"):
        resolve_device("cuda")


@pytest.mark.parametrize("count", [EVALUATION_BATCH, EVALUATION_BATCH + 1])
def test_no_forward_pass_is_over_more_rows_than_memory_allows(count: int) -> None:
    model = nn.Linear(3, 2)
    seen: list[int] = []
    model.register_forward_hook(lambda _, inputs, outputs: seen.append(len(inputs[0])))
    evaluate_model(model, some_data(count))
    assert max(seen) <= EVALUATION_BATCH
    assert sum(seen) == count


def test_chosen_rows_are_those_of_all_parts_in_evaluation_mode() -> None:
    count = 2 * EVALUATION_BATCH + 5
    features = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 2
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
    with torch.no_grad():
        model[0].running_mean.fill_(0.3)  # type: ignore[union-attr, operator]
    before = model_arrays(model)
    found = chosen_rows(model, Split(features, labels), lambda z, y: z.argmax(1) == y)
    assert model.training and model[0].training
    assert all(np.array_equal(before[k], v) for k, v in model_arrays(model).items())
    with torch.no_grad():
        right = model.eval()(features).argmax(dim=1) == labels
    assert found.tolist() == [i for i in range(count) if right[i]]
    assert 0 < len(found) < count


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        (0, TrainingOptions(local_steps=3), 0),
        (10, TrainingOptions(local_steps=3, batch_size=4), 3),
        (10, TrainingOptions(local_epochs=2, batch_size=4), 6),
        (10, TrainingOptions(local_epochs=2, batch_size=0), 2),
        (10, TrainingOptions(local_epochs=0), 0),
    ],
)
def test_the_number_of_steps_is_that_of_the_mini_batches(rows, options, expected):
    batches = list(mini_batches(rows, options, torch.Generator()))
    assert num_steps(rows, options) == len(batches) == expected
