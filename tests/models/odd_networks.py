"""Networks as people write them: unusual, and right."""

import math

import torch
from torch import Tensor, nn


class Normed(nn.Module):
    """Batch normalisation, which needs two rows; the networks below add something."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(input_shape), 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, num_classes)

    def hidden(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.norm(self.first(inputs.flatten(1)))
        return outputs

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.hidden(inputs)))
        return scores


class Measuring(Normed):
    """Statistics of its own, masks, codes, counters, flags, and empty buffers."""

    CONSTANT = ("mask", "none", "flags", "flag", "count", "byte", "scale", "codes")

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), -math.inf), 1))
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("byte", torch.tensor([3, 250], dtype=torch.uint8))
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("codes", torch.sin(torch.arange(16.0)))
        self.register_buffer("own_mean", torch.zeros(8))
        self.register_buffer("own_variance", torch.full((8,), 4.0))
        self.register_buffer("ticks", torch.zeros(()))

    def hidden(self, inputs: Tensor) -> Tensor:
        outputs = super().hidden(inputs)
        if self.training:
            with torch.no_grad():
                self.own_mean.lerp_(outputs.mean(0), 0.9)
                self.own_variance.lerp_(0.1 * outputs.var(0, unbiased=False), 0.9)
                self.ticks += 1
        centred = (outputs - self.own_mean) / (self.own_variance + 1e-5).sqrt()
        return centred * self.scale


class Unusual(Normed):
    """Unused, frozen, strided, shared, empty and scalar parameters, a module twice."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        head = self.head
        del self.head
        self.first.weight = nn.Parameter(self.first.weight.detach().t().clone().t())
        self.columns = nn.Parameter(torch.ones(8, 4)[:, ::2])
        self.register_buffer("strided", torch.ones(8, 4)[:, ::2])
        self.spare = nn.Linear(7, 3)
        self.alone = nn.Parameter(torch.tensor(0.5))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 8))
        self.unused = nn.Parameter(torch.zeros(3, 0))
        self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8)
        self.c.weight = self.b.weight
        self.again = self.norm
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        shared = torch.ones(3)
        self.register_buffer("shared", shared)
        self.register_buffer("shared_again", shared)
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.register_buffer("nothing", None)
        # The last linear layer.
        self.head = head
        self.head.weight = nn.Parameter(head.weight.detach().t().clone().t())

    def hidden(self, inputs: Tensor) -> Tensor:
        outputs = super().hidden(inputs) * self.columns.sum(1) * self.gain
        outputs = self.again(torch.relu(self.c(torch.relu(self.b(outputs)))))
        outputs = outputs + self.frozen(outputs)
        return outputs + (outputs @ self.empty.t()).sum(1, keepdim=True)


class Tied(nn.Module):
    """A head whose matrix is the embedding's."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(math.prod(input_shape), 8)
        self.embedding = nn.Embedding(num_classes, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, num_classes)
        self.head.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.body(inputs.flatten(1)))
        begin = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        scores: Tensor = self.head(torch.relu(self.middle(hidden + self.embedding(begin))))
        return scores


class Complex(Normed):
    """A complex weight, which no array of a message can hold."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.rotation = nn.Parameter(torch.eye(8, dtype=torch.complex64))

    def hidden(self, inputs: Tensor) -> Tensor:
        return (super().hidden(inputs).to(torch.complex64) @ self.rotation).real


class ComplexBuffer(Normed):
    """Rotary codes, as transformers keep them."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.register_buffer("codes", torch.polar(torch.ones(4), torch.arange(4.0)))


TWINS = (
    ("head.weight", "embedding.weight"),
    ("b.weight", "c.weight"),
    ("norm.weight", "again.weight"),
    ("norm.running_var", "again.running_var"),
    ("shared", "shared_again"),
)
"""Names of one array each."""


class Halved(nn.Module):
    """A hidden layer in bfloat16, with a head in float32."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(input_shape), 16, dtype=torch.bfloat16)
        self.head = nn.Linear(16, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden(inputs.flatten(1).bfloat16()))
        return self.head(hidden.float())
