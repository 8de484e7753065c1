"""Training images shifted and mirrored, in torch alone, drawn from a given stream."""

import torch
from torch import Tensor
from torch.nn import functional

from fedsuite.core.errors import ConfigError


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Return images shifted at random by up to ``padding`` pixels, half of them mirrored.

    Images ``[n, channels, height, width]`` may have any scaling; what comes in is 0. The
    CPU generator makes all draws. ConfigError if the inputs are no images.
    """
    if images.ndim != 4:
        raise ConfigError(
            f"crop-and-flip needs images, got inputs of shape {tuple(images.shape[1:])}: "
            "set it to false, or choose another data set"
        )
    count, _, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    starts = torch.randint(2 * padding + 1, (2, count, 1), generator=generator)
    starts = starts.to(images.device)
    rows = starts[0] + torch.arange(height, device=images.device)
    columns = starts[1] + torch.arange(width, device=images.device)
    each = torch.arange(count, device=images.device)[:, None, None]
    # Indices on both sides of the slice put the channels last.
    shifted = padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return flip(shifted, _uniform(images, generator) < 0.5)


def _uniform(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return one number in 0 to 1 per image."""
    return torch.rand(len(pixels), generator=generator).to(pixels.device)


def _column(values: Tensor) -> Tensor:
    return values.reshape(-1, 1, 1, 1)


def flip(pixels: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen images left to right."""
    return torch.where(_column(chosen), pixels.flip(3), pixels)
