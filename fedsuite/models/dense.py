"""Networks of fully connected layers."""

import math

from torch import nn


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a softmax regression: 784 inputs and 10 classes make 7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden_width: int,
    hidden_layers: int = 2,
) -> nn.Module:
    """Return ReLU layers of one width: 784-200-200-10 has 199,210 parameters."""
    layers: list[nn.Module] = [nn.Flatten()]
    features = math.prod(input_shape)
    for _ in range(hidden_layers):
        layers += [nn.Linear(features, hidden_width), nn.ReLU()]
        features = hidden_width
    return nn.Sequential(*layers, nn.Linear(features, num_classes))
