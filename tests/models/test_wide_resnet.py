"""The block of wide residual networks: what goes around the convolutions."""

import torch
from torch import nn
from torch.nn import functional

from fedsuite.models.wide_resnet import PreActivationBlock


def silent(channels_in: int, channels_out: int, stride: int) -> PreActivationBlock:
    """Return a block whose convolutions add nothing, with a norm that moves its inputs."""
    torch.manual_seed(0)
    block = PreActivationBlock(channels_in, channels_out, stride).eval()
    nn.init.zeros_(block.conv2.weight)
    nn.init.constant_(block.norm1.bias, 0.3)
    return block


def test_the_identity_passes_by_norm_and_activation() -> None:
    inputs = torch.randn(2, 4, 6, 6)
    assert torch.equal(silent(4, 4, 1)(inputs), inputs)


def test_a_projection_sees_what_the_convolutions_see() -> None:
    """Zagoruyko and Komodakis share norm and ReLU between both ways where shapes change."""
    block, inputs = silent(4, 8, 2), torch.randn(2, 4, 6, 6)
    assert block.shortcut is not None
    active = functional.relu(inputs / (1 + block.norm1.eps) ** 0.5 + 0.3)
    expected = functional.conv2d(active, block.shortcut.weight, stride=2)
    torch.testing.assert_close(block(inputs), expected)
