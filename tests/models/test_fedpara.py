"""FedPara's layers: products and ranks by hand, and the same function when dense."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsuite.core.errors import ConfigError
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.models import build_model, count_parameters
from fedsuite.models.fedpara import (
    FedParaConv2d,
    FedParaLinear,
    defactorise,
    fedpara,
    fedpara_rank,
)
from fedsuite.models.groups import parameter_groups
from tests.helpers import digits_experiment


def column(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float32).reshape(-1, 1))


def golden_layer(personal: bool) -> FedParaLinear:
    layer = FedParaLinear(nn.Linear(3, 2, bias=False), 1, personal)
    layer.x1, layer.y1 = column(1, 2), column(1, 0, 1)
    layer.x2, layer.y2 = column(2, 1), column(1, 2, 3)
    return layer


@pytest.mark.parametrize(
    ("personal", "expected"),
    [(False, [[2, 0, 6], [2, 0, 6]]), (True, [[3, 0, 7], [4, 0, 8]])],
)
def test_golden_products(personal: bool, expected: list[list[float]]) -> None:
    layer = golden_layer(personal)
    assert layer.weight().tolist() == expected
    features = torch.tensor([[1.0, 10.0, 100.0]])
    assert (
        layer(features).tolist() == (features @ torch.tensor(expected).float().T).tolist()
    )


def test_convolution_sums_over_both_ranks() -> None:
    layer = FedParaConv2d(nn.Conv2d(3, 4, (2, 3), bias=False), 2)
    layer.draw(torch.Generator().manual_seed(0))
    found = layer.products()[1]
    t, o, i = layer.t2, layer.o2, layer.i2
    by_hand = sum(
        t[x, y][None, None] * o[x][:, None, None, None] * i[y][None, :, None, None]
        for x in range(2)
        for y in range(2)
    )
    assert isinstance(by_hand, Tensor)
    assert found.shape == (4, 3, 2, 3)
    torch.testing.assert_close(found, by_hand)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_personal_layer_without_second_product_is_low_rank(kind: str) -> None:
    """W = W1 (0 + 1): the rank of a matrix is at most r."""
    layer: FedParaLinear | FedParaConv2d
    if kind == "linear":
        layer = FedParaLinear(nn.Linear(9, 8), 2, personal=True)
    else:
        layer = FedParaConv2d(nn.Conv2d(9, 8, 1), 2, personal=True)
    layer.draw(torch.Generator().manual_seed(0))
    full = torch.linalg.matrix_rank(layer.weight().reshape(8, 9))
    assert full > 2
    with torch.no_grad():
        layer.get_parameter(layer.SECOND[0]).zero_()
    assert torch.equal(layer.weight(), layer.products()[0])
    assert torch.linalg.matrix_rank(layer.weight().reshape(8, 9)) == 2


@pytest.mark.parametrize(
    ("shape", "gamma", "rank"),
    [
        # 2 r (64 + 64) + 2 r^2 25 <= 102400 up to 42; ceil(8 + 0.1 * 34)
        ((64, 64, 5, 5), 0.0, 8),
        ((64, 64, 5, 5), 1.0, 42),
        ((64, 64, 5, 5), 0.1, 12),
        # 2 r 984 <= 156800 up to 79; ceil(sqrt(200)) = 15
        ((200, 784), 0.0, 15),
        ((200, 784), 1.0, 79),
        ((200, 784), 0.5, 47),
        ((64, 16), 1.0, 6),
        # At r = 4 a 10 x 10 matrix would need 160 scalars.
        ((10, 10), 0.5, None),
        ((2, 1), 0.5, None),
        # ceil(10 + 0.07 * 100), not one more by rounding: 2 * 110 * 1100 = 242000
        ((100, 1000), 0.07, 13),
    ],
)
def test_ranks(shape: tuple[int, ...], gamma: float, rank: int | None) -> None:
    assert fedpara_rank(shape, gamma) == rank


@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=2),
    st.sampled_from([(), (1, 1), (3, 3), (5, 5)]),
    st.floats(0, 1),
)
def test_factors_are_never_larger_than_the_weight(
    sizes: list[int], sides: tuple[int, ...], gamma: float
) -> None:
    shape = (*sizes, *sides)
    rank = fedpara_rank(shape, gamma)
    if rank is None:
        return
    assert rank**2 >= min(sizes)
    layer: nn.Module
    if sides:
        layer = FedParaConv2d(nn.Conv2d(sizes[1], sizes[0], sides, bias=False), rank)
    else:
        layer = FedParaLinear(nn.Linear(sizes[1], sizes[0], bias=False), rank)
    dense = torch.Size(shape).numel()
    assert count_parameters(layer) <= dense


@pytest.mark.parametrize(
    ("channels", "kernel", "rank", "scalars"), [(64, 5, 30, 52_680), (256, 3, 36, 60_192)]
)
def test_sizes_of_the_notebook(channels: int, kernel: int, rank: int, scalars: int) -> None:
    convolution = nn.Conv2d(channels, channels, kernel, bias=False)
    assert count_parameters(FedParaConv2d(convolution, rank)) == scalars


@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18", "mobilenet-v2"])
def test_dense_again_with_the_same_outputs(name: str, personal: bool) -> None:
    model = build_model(name, (3, 32, 32), 10, 0).eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    made = fedpara(model, personal=personal)
    rebuilt = defactorise(made)
    assert list(rebuilt.state_dict()) == list(model.state_dict())
    assert count_parameters(made) < count_parameters(rebuilt) == count_parameters(model)
    features = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = made(features)
        assert bool(outputs.std() > 0)
        torch.testing.assert_close(rebuilt(features), outputs, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_stride_padding_and_dilation_are_kept() -> None:
    convolution = nn.Conv2d(16, 16, 3, stride=2, padding=2, dilation=2)
    with torch.no_grad():
        convolution.bias.copy_(torch.arange(16.0))  # type: ignore[union-attr]
    layer = FedParaConv2d(convolution, 4)
    layer.draw(torch.Generator().manual_seed(0))
    features = torch.randn(2, 16, 9, 9, generator=torch.Generator().manual_seed(1))
    found = layer(features)
    assert found.shape == convolution(features).shape
    # Processors with other kernels add up in another order.
    torch.testing.assert_close(layer.dense()(features), found, rtol=1e-5, atol=1e-5)
    assert convolution.bias is not None
    with torch.no_grad():
        convolution.weight.copy_(layer.weight())
    torch.testing.assert_close(convolution(features), found)


def network(last: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 32, 3),
        nn.Conv2d(32, 32, 3, groups=32),
        nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"),
        nn.Flatten(),
        nn.Linear(32, 64),
        nn.Linear(64, 32) if last is None else last,
    )


def test_which_layers_have_factors_and_whose_they_are() -> None:
    made = fedpara(network())
    kinds = [type(module).__name__ for module in made.children()]
    assert kinds == [
        "FedParaConv2d",
        "Conv2d",
        "Conv2d",
        "Flatten",
        "FedParaLinear",
        "Linear",
    ]
    groups = parameter_groups(made)
    assert set(groups.personal) == {"0.t2", "0.o2", "0.i2", "4.x2", "4.y2"}
    assert groups.head == ("5.weight", "5.bias")
    assert set(groups.names) == set(made.state_dict())
    assert "0.bias" in groups.other
    assert not parameter_groups(network()).personal


def test_biases_stay_and_factors_are_seeded() -> None:
    model = network()
    one, same, other = fedpara(model), fedpara(model), fedpara(model, seed=1)
    state = model.state_dict()
    assert torch.equal(one.state_dict()["4.bias"], state["4.bias"])
    for name, array in one.state_dict().items():
        assert torch.equal(array, same.state_dict()[name])
        changed = not torch.equal(array, other.state_dict()[name])
        assert changed == (name[-1] in "12")


def test_layers_of_one_shape_start_differently() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2))
    state = fedpara(model).state_dict()
    assert state["0.x1"].shape == state["1.x1"].shape
    assert not torch.equal(state["0.x1"], state["1.x1"])


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_initial_variances(kind: str) -> None:
    """FedPara: 2 / fan-out a factor. pFedPara: W1 as He's rule has it for the weight."""
    layers: list[FedParaLinear | FedParaConv2d] = []
    for personal in (False, True):
        if kind == "linear":
            layers.append(FedParaLinear(nn.Linear(400, 300), 20, personal))
        else:
            layers.append(FedParaConv2d(nn.Conv2d(100, 90, 3), 12, personal))
        layers[-1].draw(torch.Generator().manual_seed(0))
    plain, personal_layer = layers
    rank = plain.rank
    factor = "x1" if kind == "linear" else "o1"
    assert plain.get_parameter(factor).var().item() == pytest.approx(2 / rank, rel=0.15)
    if kind == "convolution":
        variance = plain.get_parameter("t1").var().item()
        assert variance == pytest.approx(2 / (9 * rank), rel=0.15)
    wanted = 2 / (400 if kind == "linear" else 900)
    first, second = personal_layer.products()
    assert first.var().item() == pytest.approx(wanted, rel=0.35)
    assert torch.equal(second, plain.products()[1])


@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_bad_gamma(gamma: float) -> None:
    with pytest.raises(ConfigError, match="fedpara-gamma"):
        fedpara(network(), gamma)


def test_nothing_to_factor() -> None:
    with pytest.raises(ConfigError, match="no layer that factors would make smaller"):
        fedpara(nn.Sequential(nn.Linear(64, 10)))


def test_keys_make_the_experiments_model() -> None:
    plain = digits_experiment(model="mlp")
    data = federated_data(plain)
    large = digits_experiment(model="mlp", fedpara=True, fedpara_gamma=1.0)
    small = digits_experiment(model="mlp", fedpara=True, fedpara_gamma=0.0)
    sizes = [count_parameters(experiment_model(e, data)) for e in (small, large, plain)]
    assert sizes == sorted(set(sizes))
    personal = digits_experiment(model="mlp", fedpara=True, fedpara_personal=True)
    layers = list(experiment_model(personal, data).children())
    assert [m.personal for m in layers if isinstance(m, FedParaLinear)] == [True, True]
    other_seed = experiment_model(small.replace(seed=1), data).state_dict()
    first = experiment_model(small, data).state_dict()
    assert not torch.equal(first["1.x1"], other_seed["1.x1"])


def test_both_factorings_are_refused() -> None:
    with pytest.raises(ConfigError, match="fedpara = True cannot go with decomposition"):
        digits_experiment(model="mlp", fedpara=True, decomposition=True)
