"""The convolutional network of FedEBA+'s CIFAR-10 experiments, and its variants.

Parameter counts are those of 3 x 32 x 32 images and 10 classes. The variants are those of
the paper's tables 21 and 22, which print some sizes that do not fit together; what is built
instead stands with each function.
"""

from torch import nn

from fedsuite.models.stages import Stage, staged_network

UNITS = (384, 192)


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two stages of 5 x 5 convolution and pooling, then layers of 384 and 192 units.

    797,962 parameters.
    """
    stages = (Stage(64), Stage(64))
    return staged_network("cnn", input_shape, num_classes, stages, UNITS)


def cnn_narrow(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of half the channels and a third of the units: 139,498 parameters."""
    stages = (Stage(32), Stage(32))
    return staged_network("cnn-narrow", input_shape, num_classes, stages, (128, 64))


def cnn_wide(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of twice the channels: 1,724,490 parameters.

    The paper prints 1600 inputs of its first layer of units; 128 channels make 3200.
    """
    stages = (Stage(128), Stage(128))
    return staged_network("cnn-wide", input_shape, num_classes, stages, UNITS)


def cnn_shallow(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of one stage, averaged over the image: 105,674 parameters.

    The paper prints 64 inputs of its first layer of units: one number a channel.
    """
    return staged_network(
        "cnn-shallow", input_shape, num_classes, (Stage(64),), UNITS, average=True
    )


def cnn_deep(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of three stages of 3 x 3 convolutions: 496,074 parameters.

    The paper does not name the kernel; 3 x 3 without padding gives the 512 inputs that it
    prints for its first layer of units.
    """
    stages = (Stage(64, kernel=3), Stage(128, kernel=3), Stage(128, kernel=3))
    return staged_network("cnn-deep", input_shape, num_classes, stages, UNITS)
