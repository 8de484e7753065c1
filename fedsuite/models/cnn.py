"""The convolutional network of FedEBA+'s CIFAR-10 experiments."""

from torch import nn

from fedsuite.errors import ConfigError
from fedsuite.models.shapes import image_shape

KERNEL = 5
SMALLEST = 16
"""Least height and width: 16 -> 12 -> 6 -> 2 -> 1 through both stages."""


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two stages of 5 x 5 convolution and pooling, then layers of 384 and 192 units.

    3 x 32 x 32 images and 10 classes make 797,962 parameters.
    """
    channels, height, width = image_shape("cnn", input_shape)
    if min(height, width) < SMALLEST:
        raise ConfigError(
            f"model cnn needs images of at least {SMALLEST} x {SMALLEST} pixels, "
            f"got {height} x {width}: choose another model, such as mlp"
        )
    features = 64 * _after_stages(height) * _after_stages(width)
    return nn.Sequential(
        nn.Conv2d(channels, 64, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, num_classes),
    )


def _after_stages(size: int) -> int:
    for _ in range(2):
        size = (size - KERNEL + 1) // 2
    return size
