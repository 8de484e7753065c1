"""Networks of fully connected layers alone."""

import math

from torch import nn


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Softmax regression: 784 inputs and 10 classes make 7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def mlp(input_shape: tuple[int, ...], num_classes: int, hidden_width: int) -> nn.Module:
    """Two hidden ReLU layers: 784-200-200-10 has 199,210 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), hidden_width),
        nn.ReLU(),
        nn.Linear(hidden_width, hidden_width),
        nn.ReLU(),
        nn.Linear(hidden_width, num_classes),
    )
