"""Layers whose weight is the elementwise product of two low-rank matrices or kernels.

N. Hyeon-Woo, M. Ye-Bin, T.-H. Oh, "FedPara: Low-rank Hadamard Product for
Communication-Efficient Federated Learning", ICLR 2022, arXiv:2108.06098.

With W_i = X_i Y_i' for a linear layer, and W_i[o,c] = sum_xy T_i[x,y] O_i[x,o] I_i[y,c] for
a kernel, W = W_1 * W_2 elementwise; pFedPara has W = W_1 * (W_2 + 1). The rank is
r = ceil((1 - gamma) r_min + gamma r_max): r_min = ceil(sqrt(min(out, in))), the least with
which W can have full rank, and r_max the largest with no more parameters than the dense
layer. The authors' notebook finds its rank by another rule; this is the paper's, and
Flower's.

Choices: the classifier stays dense, and so do layers that would not shrink at r_min,
grouped convolutions, and those that pad with anything but zeros. Factors are normal with
variance 2 / fan-out, as Flower's baseline has them, which reports that with fan-in training
does not converge: the fan-out of X, Y, O and I is the rank, of T rank times kernel area.
In pFedPara that makes W too large to train, as W_1 enters it by itself: there one factor of
W_1 is scaled so that W_1 has the variance that He's rule gives the dense weight.
"""

import copy
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import torch_stream
from fedsuite.models.head import head_names


class _Factored(nn.Module, ABC):
    """Parts that both kinds of layer share.

    Parameters
    ----------
    shape
        Shape of the weight: outputs, inputs, and the sides of a kernel.
    rank
        Rank r of each of the two products.
    personal
        Whether W = W_1 * (W_2 + 1), as pFedPara has it, rather than W_1 * W_2.
    """

    SECOND: ClassVar[tuple[str, ...]]
    """Parameters of the second product, which pFedPara keeps at the client."""

    def __init__(self, shape: tuple[int, ...], rank: int, personal: bool) -> None:
        super().__init__()
        self.shape = shape
        self.rank = rank
        self.personal = personal
        self.bias: nn.Parameter | None = None

    @abstractmethod
    def products(self) -> tuple[Tensor, Tensor]:
        """Return W_1 and W_2 in the shape of the weight."""

    @abstractmethod
    def fan_outs(self) -> dict[str, int]:
        """Return parameter to fan-out, which decides its initial variance."""

    def weight(self) -> Tensor:
        """Return the dense weight."""
        first, second = self.products()
        return first * (second + 1) if self.personal else first * second

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw the factors afresh; the bias stays."""
        for name, fan_out in self.fan_outs().items():
            factor = self.get_parameter(name)
            deviation = math.sqrt(2.0 / fan_out)
            factor.copy_(torch.randn(factor.shape, generator=generator) * deviation)
        if self.personal:
            self._scale_first()

    def _scale_first(self) -> None:
        """Give W_1 the variance that He's rule has for the dense weight."""
        fan_outs = {n: f for n, f in self.fan_outs().items() if n not in self.SECOND}
        drawn = math.prod(2.0 / fan_out for fan_out in fan_outs.values())
        drawn *= self.rank ** (len(fan_outs) - 1)
        wanted = 2.0 / math.prod(self.shape[1:])
        self.get_parameter(next(iter(fan_outs))).mul_(math.sqrt(wanted / drawn))


class FedParaLinear(_Factored):
    """Linear layer with W_i = X_i Y_i'; X is ``[out, rank]``, Y ``[in, rank]``.

    Parameters
    ----------
    linear
        Layer to stand in for: gives shape, device, dtype and bias. The factors are 0
        until :meth:`draw`.
    rank, personal
        As for the base.
    """

    SECOND: ClassVar[tuple[str, ...]] = ("x2", "y2")

    x1: nn.Parameter
    y1: nn.Parameter
    x2: nn.Parameter
    y2: nn.Parameter

    def __init__(self, linear: nn.Linear, rank: int, personal: bool = False) -> None:
        out_features, in_features = linear.weight.shape
        super().__init__((out_features, in_features), rank, personal)
        for index in (1, 2):
            x = nn.Parameter(linear.weight.new_zeros(out_features, rank))
            y = nn.Parameter(linear.weight.new_zeros(in_features, rank))
            self.register_parameter(f"x{index}", x)
            self.register_parameter(f"y{index}", y)
        self.bias = _copied(linear.bias)

    @override
    def products(self) -> tuple[Tensor, Tensor]:
        return self.x1 @ self.y1.T, self.x2 @ self.y2.T

    @override
    def fan_outs(self) -> dict[str, int]:
        return dict.fromkeys(("x1", "y1", "x2", "y2"), self.rank)

    @override
    def forward(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.weight(), self.bias)

    def dense(self) -> nn.Linear:
        """Return a dense layer with the same weight and bias."""
        out_features, in_features = self.shape
        linear = nn.Linear(in_features, out_features, bias=self.bias is not None)
        _take_weight(linear, self)
        return linear


class FedParaConv2d(_Factored):
    """Convolution with kernels of three factors: T ``[r, r, k, k]``, O ``[r, out]``, I.

    Parameters
    ----------
    convolution
        Layer to stand in for, with one group and zero padding: gives shape, stride and the
        like, device, dtype and bias. The factors are 0 until :meth:`draw`.
    rank, personal
        As for the base.
    """

    SECOND: ClassVar[tuple[str, ...]] = ("t2", "o2", "i2")

    t1: nn.Parameter
    o1: nn.Parameter
    i1: nn.Parameter
    t2: nn.Parameter
    o2: nn.Parameter
    i2: nn.Parameter

    def __init__(self, convolution: nn.Conv2d, rank: int, personal: bool = False) -> None:
        out_channels, in_channels, *sides = convolution.weight.shape
        super().__init__((out_channels, in_channels, *sides), rank, personal)
        zeros = convolution.weight.new_zeros
        for index in (1, 2):
            self.register_parameter(f"t{index}", nn.Parameter(zeros(rank, rank, *sides)))
            self.register_parameter(f"o{index}", nn.Parameter(zeros(rank, out_channels)))
            self.register_parameter(f"i{index}", nn.Parameter(zeros(rank, in_channels)))
        self.bias = _copied(convolution.bias)
        self.stride = convolution.stride
        self.padding = convolution.padding
        self.dilation = convolution.dilation

    @override
    def products(self) -> tuple[Tensor, Tensor]:
        equation = "xyzw,xo,yi->oizw"
        first = torch.einsum(equation, self.t1, self.o1, self.i1)
        return first, torch.einsum(equation, self.t2, self.o2, self.i2)

    @override
    def fan_outs(self) -> dict[str, int]:
        area = math.prod(self.shape[2:])
        flat = dict.fromkeys(("o1", "i1", "o2", "i2"), self.rank)
        return {"t1": self.rank * area, "t2": self.rank * area, **flat}

    @override
    def forward(self, features: Tensor) -> Tensor:
        return functional.conv2d(
            features, self.weight(), self.bias, self.stride, self.padding, self.dilation
        )

    def dense(self) -> nn.Conv2d:
        """Return a dense layer with the same weight and bias."""
        out_channels, in_channels, height, width = self.shape
        convolution = nn.Conv2d(
            in_channels, out_channels, (height, width), bias=self.bias is not None
        )
        convolution.stride = self.stride
        convolution.padding = self.padding
        convolution.dilation = self.dilation
        _take_weight(convolution, self)
        return convolution


def _copied(bias: Tensor | None) -> nn.Parameter | None:
    return None if bias is None else nn.Parameter(bias.detach().clone())


def fedpara_rank(shape: tuple[int, ...], gamma: float) -> int | None:
    """Return the rank for a weight, None where even the least would not shrink it.

    Parameters
    ----------
    shape
        Outputs, inputs, and the sides of a kernel.
    gamma
        0 takes the least rank, 1 the largest.
    """
    least = math.isqrt(min(shape[:2]) - 1) + 1
    size = math.prod(shape)
    if _num_factors(shape, least) > size:
        return None
    largest = least
    while _num_factors(shape, largest + 1) <= size:
        largest += 1
    # Rounded first: 0.07 * 100 is a little above 7.
    return math.ceil(round(least + gamma * (largest - least), 9))


def _num_factors(shape: tuple[int, ...], rank: int) -> int:
    """Return the number of scalars in the factors of a weight."""
    outputs, inputs, *sides = shape
    core = rank * rank * math.prod(sides) if sides else 0
    return 2 * (rank * (outputs + inputs) + core)


def fedpara(
    model: nn.Module, gamma: float = 0.1, *, personal: bool = False, seed: int = 0
) -> nn.Module:
    """Return a copy of a model whose layers have factors in place of weights.

    Parameters
    ----------
    model
        Any network; stays as it is. Its last linear layer is kept dense.
    gamma
        Where the rank lies between the least (0) and the largest (1).
    personal
        Whether the layers are pFedPara's.
    seed
        The experiment's seed; each layer draws its factors from a stream of its own.

    Raises
    ------
    ConfigError
        If no layer can be factored, or gamma is out of range.
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(f"fedpara-gamma = {gamma}: expected 0 to 1")
    head = head_names(model)
    factorised = copy.deepcopy(model)
    count = 0
    for path, module in list(factorised.named_modules()):
        if f"{path}.weight" in head:
            continue
        factored = _factor(module, gamma, personal)
        if factored is not None:
            factored.draw(torch_stream(seed, f"fedpara/{path}"))
            _replace(factorised, path, factored)
            count += 1
    if count == 0:
        raise ConfigError(
            "fedpara: the model has no layer that factors would make smaller: choose a "
            "larger model, or leave fedpara off"
        )
    return factorised


def _factor(
    module: nn.Module, gamma: float, personal: bool
) -> FedParaLinear | FedParaConv2d | None:
    """Return a layer with factors, None where the module is to stay."""
    if isinstance(module, nn.Linear):
        rank = fedpara_rank(tuple(module.weight.shape), gamma)
        return None if rank is None else FedParaLinear(module, rank, personal)
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or module.padding_mode != "zeros":
            return None
        rank = fedpara_rank(tuple(module.weight.shape), gamma)
        return None if rank is None else FedParaConv2d(module, rank, personal)
    return None


def defactorise(model: nn.Module) -> nn.Module:
    """Return a copy of a model with dense layers that compute the same."""
    dense = copy.deepcopy(model)
    for path, module in list(dense.named_modules()):
        if isinstance(module, FedParaLinear | FedParaConv2d):
            _replace(dense, path, module.dense())
    return dense


def second_factors(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that pFedPara keeps at the client."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, _Factored)
        for name in module.SECOND
    )


@torch.no_grad()
def _take_weight(layer: nn.Linear | nn.Conv2d, source: _Factored) -> None:
    """Give a dense layer the weight and bias of a factored one."""
    weight = source.weight()
    layer.to(weight)
    layer.weight.copy_(weight)
    if source.bias is not None and layer.bias is not None:
        layer.bias.copy_(source.bias)


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module in the place of another."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
