"""Max pooling on a processor has torch's bits, forwards and backwards."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedsuite.models.pooling import MaxPool2d

OPTIONS = [
    {"kernel_size": 2},
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": (2, 3), "stride": (1, 2)},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "dilation": 2, "stride": 3},
]


def maps(seed: int = 0) -> Tensor:
    """Return maps with many ties, as a ReLU leaves them."""
    draws = torch.randn(3, 5, 11, 13, generator=torch.Generator().manual_seed(seed))
    return draws.mul(2).round().relu()


def passed(module: nn.Module, given: Tensor) -> tuple[Tensor, Tensor]:
    given = given.clone().requires_grad_()
    pooled = module(given)
    pooled.backward(torch.linspace(-1, 1, pooled.numel()).reshape(pooled.shape))
    assert given.grad is not None
    return pooled.detach(), given.grad


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_maxima_and_gradients_are_torchs_also_at_ties(options) -> None:
    own, torchs = MaxPool2d(**options), nn.MaxPool2d(**options)
    for found, expected in zip(passed(own, maps()), passed(torchs, maps()), strict=True):
        assert found.is_contiguous() and torch.equal(found, expected)
    with torch.no_grad():
        assert torch.equal(own(maps()), torchs(maps()))
    assert own(maps()).is_contiguous()


def test_not_a_number_is_the_maximum_as_in_torch() -> None:
    given = maps()
    given[0, 0, 0, 1] = torch.nan
    found, expected = (passed(kind(2), given) for kind in (MaxPool2d, nn.MaxPool2d))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_gradients_of_many_at_once_and_second_derivatives_are_torchs() -> None:
    stacked = torch.stack([maps(seed) for seed in range(4)]) + 0.1

    def slopes(kind: type[nn.MaxPool2d]) -> Tensor:
        return vmap(grad(lambda one: (kind(2)(one) ** 3).sum()))(stacked)

    def curvature(kind: type[nn.MaxPool2d]) -> Tensor:
        given = (maps() + 0.1).requires_grad_()
        total = (kind(2)(given) ** 3).sum()
        (slope,) = torch.autograd.grad(total, given, create_graph=True)
        return torch.autograd.grad((slope**2).sum(), given)[0]

    assert torch.equal(slopes(MaxPool2d), slopes(nn.MaxPool2d))
    assert torch.equal(curvature(MaxPool2d), curvature(nn.MaxPool2d))


def test_maps_of_one_image_and_places_are_left_to_torch() -> None:
    assert torch.equal(MaxPool2d(2)(maps()[0]), nn.MaxPool2d(2)(maps()[0]))
    pooled, places = MaxPool2d(2, return_indices=True)(maps())
    expected = nn.MaxPool2d(2, return_indices=True)(maps())
    assert torch.equal(pooled, expected[0]) and torch.equal(places, expected[1])
