"""Convolutional networks of FedEBA+'s CIFAR-10 experiments, of FedAKD, of benchmarks.

Parameter counts are for 3 x 32 x 32 images and 10 classes. FedEBA+'s variants are those of
the paper's tables 21 and 22. Some printed sizes do not fit together; each function says
what is built instead.
"""

from torch import nn

from fedsuite.models.stages import Stage, staged_network

UNITS = (384, 192)


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of two 5 x 5 stages and layers of 384 and 192 units.

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

    The paper prints 1600 inputs of the first dense layer; 128 channels make 3200.
    """
    stages = (Stage(128), Stage(128))
    return staged_network("cnn-wide", input_shape, num_classes, stages, UNITS)


def cnn_shallow(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of one stage, averaged over the image: 105,674 parameters.

    The paper prints 64 inputs of the first dense layer, one number per channel.
    """
    return staged_network(
        "cnn-shallow", input_shape, num_classes, (Stage(64),), UNITS, average=True
    )


def cnn_deep(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of three stages of 3 x 3 convolutions: 496,074 parameters.

    The paper does not name the kernel. 3 x 3 without padding gives the printed 512 inputs
    of the first dense layer.
    """
    stages = (Stage(64, kernel=3), Stage(128, kernel=3), Stage(128, kernel=3))
    return staged_network("cnn-deep", input_shape, num_classes, stages, UNITS)


def cnn_3x3(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a small CNN of three stages of 3 x 3 convolutions: 57,770 parameters.

    This network of our own is cheap. Nine atoms per layer still express any filter, as the
    controls of filter decomposition need.
    """
    stages = (Stage(16, kernel=3), Stage(32, kernel=3), Stage(64, kernel=3))
    return staged_network("cnn-3x3", input_shape, num_classes, stages, (128,))


def cnn_fedakd(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return FedAKD's network: 60,554 parameters, 50,378 on 1 x 28 x 28.

    The paper says two convolutions with batch normalisation, pooling and one linear layer;
    the channels are those of its authors' code.
    """
    stages = (
        Stage(32, kernel=3, padding=1, normalised=True),
        Stage(64, kernel=3, padding=1, normalised=True),
    )
    return staged_network("cnn-fedakd", input_shape, num_classes, stages, ())


def cnn_plain_2(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of two convolutions without pooling: 255,690 on 1 x 28 x 28.

    FedAKD's appendix D calls it a 2-layer CNN. The layers are from an older script of the
    authors.
    """
    stages = tuple(Stage(count, kernel=3, padding=1, pooling=1) for count in (16, 32))
    return staged_network("cnn-plain-2", input_shape, num_classes, stages, ())


def cnn_plain_3(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a CNN of three convolutions without pooling: 1,403,978 parameters.

    FedAKD's appendix D calls it a 3-layer CNN. The layers are from an older script of the
    authors.
    """
    stages = tuple(Stage(count, kernel=3, padding=1, pooling=1) for count in (32, 64, 128))
    return staged_network("cnn-plain-3", input_shape, num_classes, stages, ())


def cnn_pfl(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return the CNN of pfl-research's CIFAR-10 benchmark: 1,626,442 parameters.

    The CNN lacks the two dropout layers, and starts from torch's weights instead of
    Glorot's.
    """
    stages = (Stage(32, kernel=3, pooling=1), Stage(64, kernel=3))
    return staged_network("cnn-pfl", input_shape, num_classes, stages, (128,))
