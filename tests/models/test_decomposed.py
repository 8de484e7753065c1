"""Factored networks: which layers, how many parameters, the same function, fresh draws."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsuite.core.errors import ConfigError
from fedsuite.models import (
    MODELS,
    build_model,
    count_parameters,
    decompose,
    parameter_groups,
    recompose,
)
from fedsuite.models.decomposed import DecomposedConv2d
from tests.helpers import bits

CIFAR = (3, 32, 32)
FRESH = ("kaiming-both", "match-dense")
NETWORKS_OF_3X3 = (
    "cnn-deep",
    "cnn-3x3",
    "cnn-celeba",
    "resnet18",
    "resnet34",
    "wide-resnet-10-1",
    "wide-resnet-10-2",
    "wide-resnet-16-1",
    "mobilenet-v2",
)
LENETS = ("cnn", "lenet-b", "lenet-b100", "lenet-c", "lenet-m")


def factored_layers(model: nn.Module) -> dict[str, DecomposedConv2d]:
    return {n: m for n, m in model.named_modules() if isinstance(m, DecomposedConv2d)}


def dense_layers(model: nn.Module) -> dict[str, nn.Conv2d]:
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d)}


def group_sizes(model: nn.Module) -> tuple[int, int]:
    groups, state = parameter_groups(model), model.state_dict()
    return (
        sum(state[name].numel() for name in groups.atoms),
        sum(state[name].numel() for name in groups.coefficients),
    )


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "classes", "atoms", "in_atoms", "in_coefficients", "total"),
    [
        ("cnn", 10, 3, 150, 12_864, 703_776),
        ("cnn", 100, 3, 150, 12_864, 721_146),
        ("cnn", 10, 6, 300, 25_728, 716_790),
        ("cnn", 100, 6, 300, 25_728, 734_160),
        ("cnn", 10, 9, 450, 38_592, 729_804),
        ("cnn", 100, 9, 450, 38_592, 747_174),
        ("cnn", 10, 12, 600, 51_456, 742_818),
        ("cnn", 100, 12, 600, 51_456, 760_188),
        ("lenet-b", 10, 9, 450, 38_592, 239_684),
        ("lenet-b100", 100, 9, 450, 75_456, 941_350),
        ("lenet-c", 10, 9, 531, 23_472, 99_261),
        ("lenet-c", 100, 9, 531, 23_472, 110_871),
        # 878,538 - 53,600 dense weights + 2 x 9 x 25 + (96 + 2,048) x 9.
        ("lenet-m", 10, 9, 450, 19_296, 844_684),
    ],
)
def test_counts_of_the_lenets(name, classes, atoms, in_atoms, in_coefficients, total):
    dense = build_model(name, CIFAR, classes, 0)
    model = decompose(dense, atoms, initialisation="kaiming-both")
    assert group_sizes(model) == (in_atoms, in_coefficients)
    assert count_parameters(model) == total
    assert not dense_layers(model)
    assert all(tensor.ndim < 4 for tensor in model.state_dict().values())


@pytest.mark.parametrize(
    ("options", "layers", "in_atoms", "in_coefficients"),
    [
        ({}, 16, 1_296, 10_985_472),
        ({"atoms": 12}, 16, 1_728, 14_647_296),
        # The stem adds 9 x 49 and 3 x 64 x 9; three 1 x 1 add 9 each and 172,032 x 9.
        ({"decompose_stem": True}, 17, 1_737, 10_987_200),
        ({"decompose_1x1": True}, 19, 1_323, 12_533_760),
    ],
)
def test_counts_of_resnet18(options, layers, in_atoms, in_coefficients):
    dense = build_model("resnet18-imagenet", (3, 64, 64), 200, 0)
    model = decompose(dense, initialisation="kaiming-both", **options)
    assert len(factored_layers(model)) == layers
    assert group_sizes(model) == (in_atoms, in_coefficients)
    convolutions = dense_layers(model)
    assert len(convolutions) == 20 - layers
    assert ("0" in convolutions) == ("decompose_stem" not in options)


def test_7x7_is_dense_only_at_the_start():
    first, second = nn.Conv2d(1, 2, 7), nn.Conv2d(2, 2, 7)
    assert set(factored_layers(decompose(nn.Sequential(first, second)))) == {"1"}
    after_a_pointwise_one = nn.Sequential(nn.Conv2d(1, 2, 1), second)
    assert set(factored_layers(decompose(after_a_pointwise_one))) == {"1"}
    wide = nn.Sequential(nn.Conv2d(1, 2, (1, 7)))
    assert factored_layers(decompose(wide))["0"].atoms.shape == (9, 1, 7)


@pytest.mark.parametrize(
    ("name", "atoms"),
    [
        *((name, 9) for name in NETWORKS_OF_3X3),
        *((name, 12) for name in ("cnn-deep", "resnet18", "mobilenet-v2")),
        ("resnet18-imagenet", 9),
        ("resnet18-imagenet", 12),
        *((name, 25) for name in LENETS),
        ("cnn-shallow", 30),
    ],
)
def test_enough_atoms_keep_the_function(name, atoms):
    dense = build_model(name, CIFAR, 10, 0).eval()
    model = decompose(dense, atoms)
    inputs = images(4, *CIFAR)
    with torch.no_grad():
        expected = dense(inputs)
        torch.testing.assert_close(model(inputs), expected, rtol=0.0, atol=1e-4)
        again = recompose(model)
        assert torch.equal(again(inputs), model(inputs))
    assert not factored_layers(again)
    assert again.state_dict().keys() == dense.state_dict().keys()
    for layer_name, layer in factored_layers(model).items():
        weight = dense_layers(dense)[layer_name].weight
        assert layer.coefficients.shape[2] == atoms
        assert (layer.filters() - weight).norm() < 1e-6 * weight.norm()


def test_fewer_atoms_lose_the_smallest_singular_values():
    dense = build_model("cnn-deep", CIFAR, 10, 0).double()
    model = decompose(dense, 6)
    for name, layer in factored_layers(model).items():
        weight = dense_layers(dense)[name].weight.detach()
        lost = (layer.filters() - weight).norm().item()
        sizes = np.linalg.svd(weight.reshape(-1, 9).numpy(), compute_uv=False)
        assert sizes[6:].min() > 0.01
        assert lost == pytest.approx(math.sqrt((sizes[6:] ** 2).sum()), rel=1e-10)


@pytest.mark.parametrize("atoms", [3, 6, 9])
def test_kept_factors_have_kaimings_ratio(atoms):
    """Mean squares as channels in : 9, since 2 / (9 m) is to 2 / (channels in x m)."""
    model = decompose(build_model("cnn-deep", CIFAR, 10, 0), atoms)
    for layer in factored_layers(model).values():
        ratio = layer.atoms.square().mean() / layer.coefficients.square().mean()
        assert ratio.item() == pytest.approx(layer.coefficients.shape[1] / 9, rel=1e-4)


def test_spare_atoms_are_small_and_unused():
    model = decompose(build_model("cnn-deep", CIFAR, 10, 0), 12)
    for layer in factored_layers(model).values():
        assert (layer.coefficients[..., 9:] == 0).all()
        spare = layer.atoms[9:].square().mean().sqrt().item()
        assert 0.05 < spare / math.sqrt(2 / (12 * 9)) < 0.2


def test_filters_of_zeros_can_still_be_trained():
    conv = nn.Conv2d(2, 3, 3, bias=False)
    nn.init.zeros_(conv.weight)
    factored = decompose(conv, 4)
    assert isinstance(factored, DecomposedConv2d)
    assert (factored.filters() == 0).all()
    factored(images(1, 2, 5, 5)).sum().backward()
    assert factored.coefficients.grad is not None
    assert (factored.coefficients.grad != 0).all()


def test_sign_of_kept_atoms_is_settled():
    """Singular vectors come with either sign: a layer and its negative share atoms."""
    conv = nn.Conv2d(2, 3, 3)
    factored = decompose(conv)
    with torch.no_grad():
        conv.weight.neg_()
    negative = decompose(conv)
    torch.testing.assert_close(factored.atoms, negative.atoms)
    torch.testing.assert_close(factored.coefficients, -negative.coefficients)


@pytest.mark.parametrize("initialisation", FRESH)
@pytest.mark.parametrize("atoms", [3, 9])
@pytest.mark.parametrize("kernel", [3, 5])
def test_scale_of_fresh_factors(initialisation, atoms, kernel):
    """Filters: 4 / (channels m k^2) and 1 / (3 channels k^2); factors as documented."""
    dense = nn.Conv2d(16, 64, kernel)
    drawn = [
        decompose(dense, atoms, initialisation=initialisation, seed=seed)
        for seed in range(20)
    ]
    pixels = kernel * kernel
    if initialisation == "kaiming-both":
        expected = (2 / (atoms * pixels), 2 / (16 * atoms), 4 / (16 * atoms * pixels))
    else:
        expected = (1 / pixels, 1 / (3 * 16 * atoms), 1 / (3 * 16 * pixels))
    found = [
        np.mean([pick(layer).detach().square().mean() for layer in drawn])
        for pick in (lambda x: x.atoms, lambda x: x.coefficients, lambda x: x.filters())
    ]
    assert found == pytest.approx(expected, rel=0.1)
    assert abs(np.mean([layer.atoms.mean().item() for layer in drawn])) < 0.05


@pytest.mark.parametrize("name", LENETS)
@pytest.mark.parametrize("initialisation", FRESH)
def test_first_loss_is_that_of_guessing(name, initialisation):
    dense = build_model(name, CIFAR, 10, 0)
    model = decompose(dense, initialisation=initialisation).eval()
    with torch.no_grad():
        loss = functional.cross_entropy(model(images(64, *CIFAR)), torch.arange(64) % 10)
    assert abs(loss.item() - math.log(10)) < 0.3


@pytest.mark.parametrize("initialisation", ["keep", *FRESH])
def test_draws_come_from_the_seed_alone(initialisation):
    dense = build_model("cnn-deep", CIFAR, 10, 0)

    def factors(seed):
        model = decompose(dense, 12, initialisation=initialisation, seed=seed)
        return {
            name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()
        }

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = factors(5)
    assert torch.equal(torch.get_rng_state(), before)
    recompose(decompose(dense))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert factors(5) == first
    other = factors(6)
    assert other["0.atoms"] != first["0.atoms"]
    # Biases and layers of units stay the dense network's.
    assert other["0.bias"] == first["0.bias"] == dense[0].bias.detach().numpy().tobytes()
    assert other["10.weight"] == first["10.weight"]
    same_shape = decompose(
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)), initialisation="match-dense"
    ).state_dict()
    assert not torch.equal(same_shape["0.atoms"], same_shape["1.atoms"])


def test_copy_leaves_the_model_as_it_was():
    dense = build_model("cnn-deep", CIFAR, 10, 0).eval()
    before = bits({k: v.numpy().copy() for k, v in dense.state_dict().items()})
    model = decompose(dense)
    with torch.no_grad():
        for parameter in [*model.parameters(), *recompose(model).parameters()]:
            parameter.zero_()
    assert bits({k: v.numpy() for k, v in dense.state_dict().items()}) == before
    assert not model.training
    assert not recompose(model)[0].training


def test_type_and_frozen_weights_carry_over():
    conv = nn.Conv2d(2, 3, 3, dtype=torch.float64)
    conv.weight.requires_grad_(False)
    factored = decompose(conv)
    assert isinstance(factored, DecomposedConv2d)
    trained = {name: p.requires_grad for name, p in factored.named_parameters()}
    assert trained == {"atoms": False, "coefficients": False, "bias": True}
    assert {p.dtype for p in factored.parameters()} == {torch.float64}
    assert not recompose(factored).weight.requires_grad


def test_layer_that_stands_in_two_places_is_one_layer_afterwards():
    conv = nn.Conv2d(2, 2, 3, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv, nn.Flatten(), nn.Linear(18, 2))
    factored = decompose(model)
    assert factored[0] is factored[2]
    inputs = images(3, 2, 3, 3)
    torch.testing.assert_close(factored(inputs), model(inputs))
    torch.testing.assert_close(recompose(factored)(inputs), model(inputs))
    groups = parameter_groups(factored)
    assert groups.atoms == ("0.atoms", "2.atoms")
    assert set(groups.names) == set(factored.state_dict())


def test_groups_are_those_of_the_layers_not_of_names():
    class Decoy(nn.Module):
        def __init__(self):
            super().__init__()
            self.atoms = nn.Parameter(torch.zeros(2))
            self.coefficients = nn.Parameter(torch.zeros(2))

    model = nn.Sequential(
        nn.Conv2d(1, 4, 7),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
        Decoy(),
        nn.Linear(4, 3),
        nn.Linear(3, 2),
    )
    groups = parameter_groups(decompose(model))
    assert groups.atoms == ("1.atoms",)
    assert groups.coefficients == ("1.coefficients",)
    assert groups.head == ("5.weight", "5.bias")
    assert groups.other == (
        "0.weight",
        "0.bias",
        "1.bias",
        *(f"2.{name}" for name in model[2].state_dict()),
        "3.atoms",
        "3.coefficients",
        "4.weight",
        "4.bias",
    )


def test_groups_of_a_single_layer_and_of_a_head_with_factors():
    factored = decompose(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3)))
    groups = parameter_groups(factored, head="1")
    assert groups.head == ("1.atoms", "1.coefficients", "1.bias")
    assert groups.atoms == ("0.atoms",)
    alone = decompose(nn.Conv2d(1, 1, 3))
    assert parameter_groups(nn.Sequential(alone), "0").head[0] == "0.atoms"


class OwnConv(nn.Conv2d):
    """A convolution with a forward of its own."""


def weight_shared() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    model[1].weight = model[0].weight
    return model


def computed(conv: nn.Conv2d) -> nn.Module:
    conv.register_parameter("kernel", nn.Parameter(conv.weight.detach()))
    del conv.weight
    conv.weight = conv.kernel * 1.0
    return conv


def not_finite() -> nn.Module:
    conv = nn.Conv2d(1, 1, 3)
    nn.init.constant_(conv.weight, math.nan)
    return conv


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (build_model("mlp", (64,), 10, 0), {}, "without convolutions to decompose"),
        (nn.Conv2d(3, 3, 1), {}, "without convolutions to decompose"),
        (nn.Conv2d(3, 3, 7), {}, "without convolutions to decompose"),
        (nn.Conv2d(3, 3, 3), {"atoms": 0}, "atoms = 0: expected at least 1"),
        (nn.Conv2d(3, 3, 3), {"initialisation": "fb"}, "'fb': expected one of keep, kai"),
        (nn.Sequential(OwnConv(3, 3, 3)), {}, "convolution 0 cannot .*OwnConv may"),
        (weight_shared(), {}, "convolution 0 cannot .* shares its weight"),
        (computed(nn.Conv2d(3, 3, 3)), {}, "convolution model cannot .* is computed"),
        (not_finite(), {}, "not finite"),
    ],
)
def test_what_cannot_be_decomposed_is_refused(model, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        decompose(model, **options)
    assert "\n" not in str(caught.value)


def test_convolutions_that_stay_dense_may_be_anything():
    model = nn.Sequential(OwnConv(1, 2, 1), nn.Conv2d(2, 2, 3))
    assert set(factored_layers(decompose(model))) == {"1"}


def test_torch_is_not_imported_with_the_names():
    program = (
        "import sys, fedsuite.models as models; assert 'torch' not in sys.modules\n"
        "from fedsuite.models import decompose, recompose, parameter_groups\n"
        "assert decompose.__module__ == 'fedsuite.models.decomposed'\n"
        "assert set(models.__all__) <= set(dir(models)) | {'decompose', 'recompose'}\n"
        "try: models.compose\nexcept AttributeError as error: print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "no attribute 'compose'" in result.stdout


def test_every_network_with_convolutions_can_be_factored():
    for name in MODELS:
        if name not in ("linear", "mlp", "lstm-reddit", "embedding-bag"):
            model = decompose(build_model(name, CIFAR, 10, 0), 2, initialisation=FRESH[0])
            assert model(images(2, *CIFAR)).shape == (2, 10)
