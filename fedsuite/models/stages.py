"""Stages of the plain convolutional networks."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.models.pooling import MaxPool2d
from fedsuite.models.shapes import image_shape


class Stage(NamedTuple):
    """A convolution of stride 1, then the activation, then pooling.

    Parameters
    ----------
    channels
        Filters of the convolution.
    kernel, padding
        Side of the kernel, and width of the zeros around the input.
    pooling
        Factor of the max-pooling; 1 does not pool.
    normalised
        Whether batch normalisation follows the convolution.
    """

    channels: int
    kernel: int = 5
    padding: int = 0
    pooling: int = 2
    normalised: bool = False


def staged_network(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    stages: Sequence[Stage],
    units: Sequence[int],
    *,
    activation: type[nn.Module] = nn.ReLU,
    average: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Return convolutional stages, then layers of units, then the classifier.

    Parameters
    ----------
    name
        Name of the network, for errors.
    input_shape, num_classes
        Shape of an input, and number of outputs.
    stages
        Stages from the input on.
    units
        Units of each hidden layer after the stages.
    activation
        Activation after each convolution and each hidden layer.
    average
        Whether each channel is averaged to one number after the stages.
    dropout
        Share of the classifier's inputs that training leaves out; 0 is none.
    """
    channels, height, width = image_shape(name, input_shape)
    smallest = _smallest(stages)
    if min(height, width) < smallest:
        raise ConfigError(
            f"model {name} needs images of at least {smallest} x {smallest} pixels, "
            f"got {height} x {width}: choose another model, such as mlp"
        )
    layers: list[nn.Module] = []
    for stage in stages:
        convolution = nn.Conv2d(
            channels, stage.channels, stage.kernel, padding=stage.padding
        )
        layers.append(convolution)
        if stage.normalised:
            layers.append(nn.BatchNorm2d(stage.channels))
        layers.append(activation())
        if stage.pooling > 1:
            layers.append(MaxPool2d(stage.pooling))
        channels = stage.channels
        height, width = _after(stage, height), _after(stage, width)
    if average:
        layers.append(nn.AdaptiveAvgPool2d(1))
        height = width = 1
    layers.append(nn.Flatten())
    features = channels * height * width
    for count in units:
        layers += [nn.Linear(features, count), activation()]
        features = count
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(features, num_classes))


def _after(stage: Stage, size: int) -> int:
    """Return the side of an image after a stage."""
    return (size + 2 * stage.padding - stage.kernel + 1) // stage.pooling


def _smallest(stages: Sequence[Stage]) -> int:
    """Return the smallest image side that leaves a pixel after the stages."""
    size = 1
    for stage in reversed(stages):
        size = stage.pooling * size + stage.kernel - 1 - 2 * stage.padding
    return size
