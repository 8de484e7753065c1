"""Wide residual networks for small images.

S. Zagoruyko, N. Komodakis: Wide Residual Networks, BMVC 2016. WResNet-d-k has d layers and
k times the channels of the thinnest network. Normalisation and activation come before each
convolution. There is no dropout. FedAL (arXiv:2311.16584) names these networks without
their layers.
"""

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.models.shapes import image_shape

WIDTHS = (16, 32, 64)


class PreActivationBlock(nn.Module):
    """Two 3 x 3 convolutions, each after normalisation and ReLU, beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(
            channels_in, channels_out, 3, stride=stride, padding=1, bias=False
        )
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)
            if stride != 1 or channels_in != channels_out
            else None
        )

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        active = functional.relu(self.norm1(inputs))
        # A projection takes the normalised input; the identity takes the raw input.
        around = inputs if self.shortcut is None else self.shortcut(active)
        hidden = self.conv1(active)
        hidden = self.conv2(functional.relu(self.norm2(hidden)))
        return hidden + around  # type: ignore[no-any-return]


def wide_resnet_10_1(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return WResNet-10-1: 77,850 parameters on 3 channels and 10 classes."""
    return _wide_resnet("wide-resnet-10-1", input_shape, num_classes, depth=10, widen=1)


def wide_resnet_10_2(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return WResNet-10-2: 303,706 parameters on 3 channels and 10 classes."""
    return _wide_resnet("wide-resnet-10-2", input_shape, num_classes, depth=10, widen=2)


def wide_resnet_16_1(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return WResNet-16-1: 175,066 parameters on 3 channels and 10 classes."""
    return _wide_resnet("wide-resnet-16-1", input_shape, num_classes, depth=16, widen=1)


def _wide_resnet(
    name: str, input_shape: tuple[int, ...], num_classes: int, *, depth: int, widen: int
) -> nn.Module:
    channels, _, _ = image_shape(name, input_shape)
    layers: list[nn.Module] = [nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)]
    width_in = WIDTHS[0]
    for group, width in enumerate(WIDTHS):
        for block in range((depth - 4) // 6):
            stride = 2 if group > 0 and block == 0 else 1
            layers.append(PreActivationBlock(width_in, width * widen, stride))
            width_in = width * widen
    layers += [nn.BatchNorm2d(width_in), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width_in, num_classes))
