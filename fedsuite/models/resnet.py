"""Residual networks, in CIFAR's and in ImageNet's form.

K. He, X. Zhang, S. Ren, J. Sun: Deep Residual Learning for Image Recognition, CVPR 2016.
The CIFAR form, common in federated papers, keeps ResNet-18's four groups of basic blocks.
One 3 x 3 convolution of stride 1 replaces the 7 x 7 stem of stride 2 and its max-pooling.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.models.pooling import MaxPool2d
from fedsuite.models.shapes import image_shape

WIDTHS = (64, 128, 256, 512)
BLOCKS_18 = (2, 2, 2, 2)
BLOCKS_34 = (3, 4, 6, 3)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, projected where shapes change."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(
            channels_in, channels_out, 3, stride=stride, padding=1, bias=False
        )
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(inputs)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


def resnet18(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return ResNet-18: 11,173,962 parameters at 10 classes.

    The network takes images of any size. Images of at most 8 x 8 pixels leave the last
    group one pixel, so that batch normalisation cannot train on a single sample.
    """
    channels, _, _ = image_shape("resnet18", input_shape)
    stem = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
    return nn.Sequential(stem, *_after_stem(num_classes, BLOCKS_18))


def resnet34(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return ResNet-34: 21,282,122 parameters at 10 classes."""
    channels, _, _ = image_shape("resnet34", input_shape)
    stem = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
    return nn.Sequential(stem, *_after_stem(num_classes, BLOCKS_34))


def resnet18_imagenet(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return ResNet-18 for large images: 11,279,112 parameters at 200 classes.

    Five halvings leave one pixel of 32 in the last group, so that batch normalisation
    cannot train on a single sample.
    """
    channels, _, _ = image_shape("resnet18-imagenet", input_shape)
    stem = nn.Conv2d(channels, WIDTHS[0], 7, stride=2, padding=3, bias=False)
    return nn.Sequential(
        stem, *_after_stem(num_classes, BLOCKS_18, MaxPool2d(3, 2, padding=1))
    )


def _after_stem(
    num_classes: int, blocks: Sequence[int], *pooling: nn.Module
) -> list[nn.Module]:
    """Return all layers but the first convolution."""
    layers: list[nn.Module] = [nn.BatchNorm2d(WIDTHS[0]), nn.ReLU(), *pooling]
    width_in = WIDTHS[0]
    for width, count in zip(WIDTHS, blocks, strict=True):
        for block in range(count):
            stride = 2 if block == 0 and width != WIDTHS[0] else 1
            layers.append(BasicBlock(width_in, width, stride))
            width_in = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, num_classes)]
    return layers
