"""LEAF's network for CelebA.

S. Caldas et al.: LEAF: A Benchmark for Federated Settings, arXiv:1812.01097.
"""

from torch import nn

from fedsuite.models.pooling import MaxPool2d
from fedsuite.models.shapes import image_shape

CHANNELS = 32


def cnn_celeba(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return four stages of 3 x 3 convolution, normalisation, pooling and ReLU.

    31,202 parameters on 3 x 84 x 84 images and 2 classes. Pooling keeps an odd last row
    and column, as LEAF's does: 84, 42, 21, 11, 6.
    """
    channels, height, width = image_shape("cnn-celeba", input_shape)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [
            nn.Conv2d(channels, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),
        ]
        channels, height, width = CHANNELS, (height + 1) // 2, (width + 1) // 2
    features = channels * height * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, num_classes))
