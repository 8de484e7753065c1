"""A network of two layers."""

from math import prod

from torch import Tensor, nn


class TwoLayers(nn.Module):
    """One hidden layer of 24 units with tanh."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(prod(input_shape), 24)
        self.head = nn.Linear(24, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return one score per class, ``[rows, num_classes]``."""
        return self.head(self.body(features.flatten(1)).tanh())
