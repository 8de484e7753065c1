"""MobileNet-v2 for small images.

M. Sandler, A. Howard, M. Zhu, A. Zhmoginov, L.-C. Chen, "MobileNetV2: Inverted Residuals
and Linear Bottlenecks", CVPR 2018, arXiv:1801.04381, table 2. Widths, expansions and
numbers of blocks are the paper's. Two deviations are usual for images of 32 to 64 pixels.
The stem and the second group keep the resolution (stride 1 for 2), so that 32 x 32 ends as
4 x 4 instead of one pixel. There is no dropout before the last layer.
"""

from torch import Tensor, nn
from typing_extensions import override

from fedsuite.models.shapes import image_shape

STEM = 32
HEAD = 1280
GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, number of blocks and stride of each group."""


def _convolution(
    channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Return a padded convolution and its normalisation."""
    return [
        nn.Conv2d(
            channels_in,
            channels_out,
            kernel,
            stride=stride,
            padding=kernel // 2,
            groups=groups,
            bias=False,
        ),
        nn.BatchNorm2d(channels_out),
    ]


class InvertedResidual(nn.Module):
    """Block that expands by 1 x 1, filters each channel by 3 x 3, and projects back.

    The input is added where shapes allow. The projection has no activation.
    """

    def __init__(
        self, channels_in: int, channels_out: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*_convolution(channels_in, hidden, 1), nn.ReLU6()]
        layers += [*_convolution(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        layers += _convolution(hidden, channels_out, 1)
        self.layers = nn.Sequential(*layers)
        self.adds_input = stride == 1 and channels_in == channels_out

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if self.adds_input else outputs


def mobilenet_v2(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Seven groups of inverted residuals; 2,236,682 parameters at 10 classes.

    The network takes images of any size. Images of at most 8 x 8 pixels leave the last
    groups one pixel, so that batch normalisation cannot train on a single sample.
    """
    channels, _, _ = image_shape("mobilenet-v2", input_shape)
    layers: list[nn.Module] = [*_convolution(channels, STEM, 3), nn.ReLU6()]
    width = STEM
    for expansion, channels_out, blocks, first_stride in GROUPS:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers.append(InvertedResidual(width, channels_out, stride, expansion))
            width = channels_out
    layers += [*_convolution(width, HEAD, 1), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(HEAD, num_classes)]
    return nn.Sequential(*layers)
