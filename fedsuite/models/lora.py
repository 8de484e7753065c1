"""Low-rank adapters in place of the training of a network's linear layers.

E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
arXiv:2106.09685. A layer of weight W0 gives

    W0 x + b + (alpha / r) B A x,        A [r, in], B [out, r],

where W0 and b stay as they are. A is drawn as torch draws a linear layer's weight, and B
is 0, so that training begins from the network as it was. All else is frozen too, but for
the head, which is trained whole.

FFA-LoRA (Y. Sun et al., ICLR 2024, arXiv:2403.12313) also leaves A as drawn: the mean of
the clients' B then gives the mean of their products. Its pattern of ``travels`` names B
and the head alone, because what does not travel is not trained.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import torch_stream
from fedsuite.models.head import head_names

A, B = "lora_a", "lora_b"


class LoRALinear(nn.Linear):
    """A linear layer that is frozen, and what is added to it.

    Parameters
    ----------
    linear
        The layer to stand in for, whose weight and bias it takes over.
    rank
        Rank r, at least 1.
    alpha
        Factor on the product, over the rank.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(linear.weight.new_zeros(rank, linear.in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw A afresh, uniform up to 1 / sqrt(inputs)."""
        drawn = torch.rand(self.lora_a.shape, generator=generator) * 2 - 1
        self.lora_a.copy_(drawn / math.sqrt(self.in_features))

    @override
    def forward(self, input: Tensor) -> Tensor:
        added = functional.linear(functional.linear(input, self.lora_a), self.lora_b)
        return functional.linear(input, self.weight, self.bias) + self.scale * added


def take_rank(model: nn.Module, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """Give an adapter the rank of an array that is to be loaded into it.

    Clients have ranks of their own, and one network of a process serves many clients.

    Returns
    -------
    Tensor or None
        What to load into; None where the name is of no adapter, or the shape is none that
        it can have.
    """
    path, _, part = name.rpartition(".")
    layer = model.get_submodule(path)
    if not isinstance(layer, LoRALinear) or part not in (A, B) or len(shape) != 2:
        return None
    rank, side = shape if part == A else shape[::-1]
    most = min(layer.in_features, layer.out_features)
    sides = {A: layer.in_features, B: layer.out_features}
    if side != sides[part] or not 1 <= rank <= most:
        return None
    parameter: nn.Parameter = getattr(layer, part)
    parameter.data = parameter.data.new_zeros(shape)
    return parameter.data


def add_lora(model: nn.Module, rank: int, alpha: float, *, seed: int = 0) -> nn.Module:
    """Give each linear layer but the head an adapter, freeze the rest, and return it.

    Parameters
    ----------
    model
        Any network; its layers are replaced in place.
    rank
        Rank of the adapters; a layer gets no more than its smaller side.
    alpha
        Factor on the products, over the rank.
    seed
        Seed of the stream ``"lora"``, from which the A are drawn.

    Raises
    ------
    ConfigError
        If no layer but the head is linear.
    """
    head = head_names(model)
    for parameter in (p for n, p in model.named_parameters() if n not in head):
        parameter.requires_grad_(False)
    generator, adapted = torch_stream(seed, "lora"), False
    for path, module in list(model.named_modules()):
        for name, layer in list(module.named_children()):
            own = f"{path}.{name}".removeprefix(".")
            if type(layer) is not nn.Linear or f"{own}.weight" in head:
                continue
            smaller = min(layer.in_features, layer.out_features)
            adapter = LoRALinear(layer, min(rank, smaller), alpha)
            adapter.draw(generator)
            setattr(module, name, adapter)
            adapted = True
    if not adapted:
        raise ConfigError("the network has no linear layer beside its head")
    return model
