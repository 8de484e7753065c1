"""Convolutions whose filters are sums of a few shared atoms.

W. Chen, Q. Qiu: Extra Clients at No Extra Cost: Overcome Data Heterogeneity in Federated
Learning with Filter Decomposition, ICML 2025, arXiv:2503.08652. Section 4: each filter of a
layer, from input channel i to output channel o, combines the layer's atoms,

    F[o, i] = sum over q of coefficients[o, i, q] * atoms[q].

The paper leaves open which layers are decomposed, and how factors start. Here:

- Every convolution wider than 1 x 1 is decomposed, except a 7 x 7 stem. A stem is the
  network's first registered convolution.
- Factors that keep a trained network's function come from a singular value decomposition.
  New factors follow Kaiming's rule for both factors, or torch's variance of a dense filter.
"""

import copy
import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import torch_stream

Initialisation = Literal["keep", "kaiming-both", "match-dense"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

SPARE_SCALE = 0.1
"""Size of atoms that no filter uses yet, as a fraction of Kaiming's deviation."""


class DecomposedConv2d(nn.Module):
    """A convolution whose parameters are filter atoms and their coefficients.

    Parameters
    ----------
    atoms
        (m, kernel height, kernel width).
    coefficients
        (channels out, channels in / groups, m).
    bias
        (channels out), or None.
    stride, padding, dilation, groups, padding_mode
        As of ``torch.nn.Conv2d``.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        atoms: Tensor,
        coefficients: Tensor,
        bias: Tensor | None = None,
        *,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] | str = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        padding_mode: PaddingMode = "zeros",
    ) -> None:
        super().__init__()
        self.atoms = _parameter(atoms)
        self.coefficients = _parameter(coefficients)
        self.register_parameter("bias", None if bias is None else _parameter(bias))
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.padding_mode = padding_mode

    @classmethod
    def like(
        cls, conv: nn.Conv2d, atoms: Tensor, coefficients: Tensor
    ) -> "DecomposedConv2d":
        """Return a layer with these factors and a dense convolution's other properties.

        The bias is the same parameter. The factors take the dense weight's type, device and
        ``requires_grad``.
        """
        weight = conv.weight
        layer = cls(
            nn.Parameter(atoms.to(weight), requires_grad=weight.requires_grad),
            nn.Parameter(coefficients.to(weight), requires_grad=weight.requires_grad),
            conv.bias,
            stride=_pair(conv.stride),
            padding=conv.padding if isinstance(conv.padding, str) else _pair(conv.padding),
            dilation=_pair(conv.dilation),
            groups=conv.groups,
            padding_mode=conv.padding_mode,
        )
        return layer.train(conv.training)

    def filters(self) -> Tensor:
        """Return the dense filters (channels out, channels in / groups, height, width)."""
        filters: Tensor = torch.einsum("oiq,qxy->oixy", self.coefficients, self.atoms)
        return filters

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        inputs, padding = self._padded(inputs)
        return functional.conv2d(
            inputs,
            self.filters(),
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
        )

    def dense(self) -> nn.Conv2d:
        """Return the dense convolution with these filters and the same bias."""
        channels_out, channels_in = self.coefficients.shape[:2]
        # On the meta device no weights are drawn.
        conv = nn.Conv2d(
            channels_in * self.groups,
            channels_out,
            (self.atoms.shape[1], self.atoms.shape[2]),
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            bias=False,
            padding_mode=self.padding_mode,
            device="meta",
        )
        trained = self.atoms.requires_grad or self.coefficients.requires_grad
        conv.weight = nn.Parameter(self.filters().detach(), requires_grad=trained)
        conv.bias = self.bias
        return conv.train(self.training)

    @override
    def extra_repr(self) -> str:
        channels_out, channels_in, count = self.coefficients.shape
        return (
            f"{channels_in * self.groups}, {channels_out}, "
            f"kernel_size={tuple(self.atoms.shape[1:])}, atoms={count}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, padding_mode={self.padding_mode}"
        )

    def _padded(self, inputs: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return padded inputs, and the padding that a convolution must still add."""
        (top, bottom), (left, right) = self._margins()
        if self.padding_mode == "zeros" and top == bottom and left == right:
            return inputs, (top, left)
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(inputs, (left, right, top, bottom), mode), (0, 0)

    def _margins(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the padding (top, bottom), (left, right)."""
        if not isinstance(self.padding, str):
            vertical, horizontal = self.padding
            return (vertical, vertical), (horizontal, horizontal)
        if self.padding == "valid":
            return (0, 0), (0, 0)
        # As in torch, the end gets one pixel more of an odd number.
        height, width = (
            step * (size - 1)
            for step, size in zip(self.dilation, self.atoms.shape[1:], strict=True)
        )
        return (height // 2, height - height // 2), (width // 2, width - width // 2)


def decompose(
    model: nn.Module,
    atoms: int = 9,
    *,
    initialisation: Initialisation = "keep",
    decompose_stem: bool = False,
    decompose_1x1: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Return a copy of a model with factored convolutions; linear layers stay dense.

    Each ``Conv2d`` wider than 1 x 1 becomes a :class:`DecomposedConv2d` with the same bias,
    stride, padding, dilation and groups.

    Parameters
    ----------
    model
        Any network, which stays unchanged.
    atoms
        Filter atoms per layer, m >= 1. As many atoms as a kernel has pixels can express any
        filters.
    initialisation
        ``keep``: the factors of the nearest filters that m atoms can express; with m of at
        least the kernel's pixels the function stays the same. ``kaiming-both``: atoms of
        variance 2 / (m k^2), coefficients of 2 / (channels in x m).
        ``match-dense``: atoms of variance 1 / k^2, coefficients of
        1 / (3 x channels in x m), so that filters vary as torch's dense ones do.
    decompose_stem
        Whether the first convolution is decomposed even if its kernel is 7 x 7.
    decompose_1x1
        Whether 1 x 1 convolutions are decomposed too.
    seed
        Seed of the draws; torch's global generator is neither used nor changed.

    Raises
    ------
    ConfigError
        If there is no such convolution, or a convolution cannot be replaced: a subclass of
        ``Conv2d``, or a weight that is computed, shared with another layer, or not finite.
    """
    if atoms < 1:
        raise ConfigError(f"atoms = {atoms}: expected at least 1")
    if initialisation not in get_args(Initialisation):
        raise ConfigError(
            f"initialisation = {initialisation!r}: expected one of "
            f"{', '.join(get_args(Initialisation))}"
        )
    chosen = factored_layers(model, stem=decompose_stem, pointwise=decompose_1x1)
    if not chosen:
        raise ConfigError(
            f"a model without convolutions to decompose ({type(model).__name__}): choose "
            "one with convolutions wider than 1 x 1, or do without decomposition"
        )
    _check_replaceable(model, chosen)
    generator = torch_stream(seed, "decomposition")
    result = copy.deepcopy(model)
    new: dict[nn.Module, nn.Module] = {}
    for name in chosen:
        conv = result.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)
        factors = _factors(conv.weight.detach().cpu(), atoms, initialisation, generator)
        new[conv] = DecomposedConv2d.like(conv, *factors)
    return _replaced(result, new)


def recompose(model: nn.Module) -> nn.Module:
    """Return a copy of a model with dense convolutions and the same outputs."""
    result = copy.deepcopy(model)
    layers = (m for m in result.modules() if isinstance(m, DecomposedConv2d))
    return _replaced(result, {layer: layer.dense() for layer in layers})


def factored_layers(model: nn.Module, *, stem: bool, pointwise: bool) -> list[str]:
    """Return the names of the convolutions that :func:`decompose` replaces.

    Parameters
    ----------
    stem, pointwise
        Whether a 7 x 7 first convolution, and 1 x 1 convolutions, are included.
    """
    names = []
    first = True
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        is_stem = first and module.kernel_size == (7, 7)
        first = False
        if (stem or not is_stem) and (pointwise or module.kernel_size != (1, 1)):
            names.append(name)
    return names


def _check_replaceable(model: nn.Module, names: list[str]) -> None:
    """Refuse convolutions without a factored equivalent."""
    owners: dict[int, str] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = "several" if id(parameter) in owners else name
    for name in names:
        conv = model.get_submodule(name)
        weight = dict(conv.named_parameters(recurse=False)).get("weight")
        if type(conv) is not nn.Conv2d:
            reason = f"{type(conv).__name__} may compute something else than Conv2d"
        elif weight is None:
            reason = "its weight is computed from other parameters"
        elif owners[id(weight)] == "several":
            reason = "it shares its weight with another layer"
        elif not bool(weight.isfinite().all()):
            reason = "its weight is not finite"
        else:
            continue
        raise ConfigError(f"convolution {name or 'model'} cannot be decomposed: {reason}")


def _replaced(model: nn.Module, new: dict[nn.Module, nn.Module]) -> nn.Module:
    """Replace old modules by new ones in all their places."""
    if model in new:
        return new[model]
    # A module in several places is replaced in each place.
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module in new:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new[module])
    return model


def _factors(
    weight: Tensor, count: int, initialisation: str, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return atoms and coefficients (float64) for dense filters ``weight``."""
    channels_out, channels_in, height, width = weight.shape

    def normal(variance: float, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values * math.sqrt(variance)

    kaiming = 2 / (count * height * width)
    if initialisation == "keep":
        spare = normal(SPARE_SCALE**2 * kaiming, count, height, width)
        return _nearest_factors(weight.double(), spare)
    if initialisation == "kaiming-both":
        variances = kaiming, 2 / (channels_in * count)
    else:
        variances = 1 / (height * width), 1 / (3 * channels_in * count)
    atoms = normal(variances[0], count, height, width)
    return atoms, normal(variances[1], channels_out, channels_in, count)


def _nearest_factors(weight: Tensor, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of the least-squares nearest filters.

    Parameters
    ----------
    weight
        (channels out, channels in, height, width).
    spare
        (m, height, width): atoms for unused places, with coefficients of 0. Such atoms can
        be trained, unlike atoms of zeros.
    """
    channels_out = len(weight)
    rows = weight.flatten(0, 1).flatten(1)
    left, sizes, right = torch.linalg.svd(rows, full_matrices=False)
    # A pair of singular vectors may have either sign; the largest entry decides.
    peaks = right.gather(1, right.abs().argmax(1, keepdim=True))
    left, right = left * peaks.sign().T, right * peaks.sign()
    needed = int((sizes > sizes[0] * torch.finfo(sizes.dtype).eps).sum())
    rank = min(len(spare), needed)
    roots = sizes[:rank].sqrt()
    # With this scale the mean squares of atoms and coefficients are in Kaiming's ratio,
    # channels in : kernel's pixels.
    scale = channels_out**-0.25
    atoms = spare.clone()
    atoms[:rank] = (roots[:, None] * right[:rank]).unflatten(1, spare.shape[1:]) * scale
    coefficients = weight.new_zeros(*weight.shape[:2], len(spare))
    kept = (left[:, :rank] * roots).unflatten(0, weight.shape[:2])
    coefficients[..., :rank] = kept / scale
    return atoms, coefficients


def _parameter(values: Tensor) -> nn.Parameter:
    return values if isinstance(values, nn.Parameter) else nn.Parameter(values)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    first, second = values
    return first, second
