"""The convolutional network of FedEBA+'s CIFAR-10 experiments, and its variants.

Parameter counts are those of 3 x 32 x 32 images and 10 classes. The variants are those of
the paper's tables 21 and 22, which print some sizes that do not fit together; what is built
instead stands with each function.
"""

from collections.abc import Sequence

from torch import nn

from fedsuite.errors import ConfigError
from fedsuite.models.shapes import image_shape


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two stages of 5 x 5 convolution and pooling, then layers of 384 and 192 units.

    797,962 parameters.
    """
    return _network("cnn", input_shape, num_classes, (64, 64))


def cnn_narrow(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of half the channels and a third of the units: 139,498 parameters."""
    return _network("cnn-narrow", input_shape, num_classes, (32, 32), units=(128, 64))


def cnn_wide(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of twice the channels: 1,724,490 parameters.

    The paper prints 1600 inputs of its first layer of units; 128 channels make 3200.
    """
    return _network("cnn-wide", input_shape, num_classes, (128, 128))


def cnn_shallow(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of one stage, averaged over the image: 105,674 parameters.

    The paper prints 64 inputs of its first layer of units: one number a channel.
    """
    return _network("cnn-shallow", input_shape, num_classes, (64,), average=True)


def cnn_deep(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of three stages of 3 x 3 convolutions: 496,074 parameters.

    The paper does not name the kernel; 3 x 3 without padding gives the 512 inputs that it
    prints for its first layer of units.
    """
    return _network("cnn-deep", input_shape, num_classes, (64, 128, 128), kernel=3)


def cnn_3x3(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a small CNN of three stages of 3 x 3 convolutions: 57,770 parameters.

    Ours: cheap, and with nine atoms a layer every filter can still be any filter, which
    the controls of filter decomposition need.
    """
    return _network(
        "cnn-3x3", input_shape, num_classes, (16, 32, 64), kernel=3, units=(128,)
    )


def _network(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: Sequence[int],
    *,
    kernel: int = 5,
    units: Sequence[int] = (384, 192),
    average: bool = False,
) -> nn.Module:
    """Return stages of convolution, ReLU and pooling, then layers of units.

    Parameters
    ----------
    name
        Name of the network, for errors.
    input_shape, num_classes
        What goes in and out.
    channels
        Of each stage.
    kernel
        Side of the convolutions; there is no padding.
    units
        Of each hidden layer after the stages.
    average
        Whether each channel is averaged to one number after the stages.
    """
    channels_in, height, width = image_shape(name, input_shape)
    smallest = _smallest(kernel, len(channels))
    if min(height, width) < smallest:
        raise ConfigError(
            f"model {name} needs images of at least {smallest} x {smallest} pixels, "
            f"got {height} x {width}: choose another model, such as mlp"
        )
    layers: list[nn.Module] = []
    for count in channels:
        layers += [nn.Conv2d(channels_in, count, kernel), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
        channels_in = count
    if average:
        layers.append(nn.AdaptiveAvgPool2d(1))
        height = width = 1
    layers.append(nn.Flatten())
    features = channels_in * height * width
    for count in units:
        layers += [nn.Linear(features, count), nn.ReLU()]
        features = count
    return nn.Sequential(*layers, nn.Linear(features, num_classes))


def _smallest(kernel: int, stages: int) -> int:
    """Return the least side of an image of which one pixel is left after the stages."""
    size = 1
    for _ in range(stages):
        size = 2 * size + kernel - 1
    return size
