"""Random views of images, in torch alone, drawn from given streams.

:func:`crop_and_flip` is the usual augmentation of training. :func:`augment` makes the views
of self-regularisation.

Batches are ``[n, channels, height, width]``, pixels 0 to 1. Grey images are rotated; colour
images are mirrored, and their colours changed or removed. The 30 degrees and the
probabilities 0.8 and 0.2 are those of the public FedLSR code. It names no strengths of the
colour changes: 0.4, 0.4, 0.4 and 0.1 are the usual ones.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from fedsuite.core.errors import ConfigError

MAX_DEGREES = 30.0
JITTER_PROBABILITY = 0.8
GREY_PROBABILITY = 0.2
STRENGTH = 0.4
HUE_TURNS = 0.1

_LUMA = (0.299, 0.587, 0.114)
# Chroma axes of YIQ: hue is the angle in their plane, and grey is its origin.
_CHROMA = ((0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


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


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random view of each grey or RGB image, of the same shape and in 0 to 1.

    The CPU generator makes all draws. ConfigError if the inputs are no such images.
    """
    channels = pixels.shape[1] if pixels.ndim == 4 else 0
    if channels == 1:
        degrees = (_uniform(pixels, generator) * 2 - 1) * MAX_DEGREES
        return rotate(pixels, degrees)
    if channels == 3:
        return _colour_view(pixels, generator)
    raise ConfigError(
        f"lsr-gamma needs grey or colour images, got inputs of shape "
        f"{tuple(pixels.shape[1:])}: set it to 0, or choose another data set"
    )


def _colour_view(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images, change the colours of most, and make some grey."""
    view = flip(pixels, _uniform(pixels, generator) < 0.5)
    chosen = _uniform(pixels, generator) < JITTER_PROBABILITY
    jittered = view
    for change in (change_brightness, change_contrast, change_saturation):
        factors = 1 + (_uniform(pixels, generator) * 2 - 1) * STRENGTH
        jittered = change(jittered, factors)
    jittered = change_hue(jittered, (_uniform(pixels, generator) * 2 - 1) * HUE_TURNS)
    view = torch.where(_column(chosen), jittered, view)
    grey = luma(view).expand_as(view)
    return torch.where(_column(_uniform(pixels, generator) < GREY_PROBABILITY), grey, view)


def _uniform(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return one number in 0 to 1 per image."""
    return torch.rand(len(pixels), generator=generator).to(pixels.device)


def _column(values: Tensor) -> Tensor:
    return values.reshape(-1, 1, 1, 1)


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its centre; black comes in."""
    height, width = pixels.shape[2:]
    angle = torch.deg2rad(degrees)
    cosine, sine, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    # Where each output pixel comes from, in coordinates of -1 to 1 on both axes.
    rows = (
        torch.stack([cosine, -sine * height / width, zero], dim=1),
        torch.stack([sine * width / height, cosine, zero], dim=1),
    )
    size = list(pixels.shape)
    grid = functional.affine_grid(torch.stack(rows, dim=1), size, align_corners=False)
    return functional.grid_sample(pixels, grid, align_corners=False).clamp(0, 1)


def flip(pixels: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen images left to right."""
    return torch.where(_column(chosen), pixels.flip(3), pixels)


def luma(pixels: Tensor) -> Tensor:
    """Return the perceived brightness, ``[n, 1, height, width]``."""
    weights = pixels.new_tensor(_LUMA).reshape(1, 3, 1, 1)
    return (pixels * weights).sum(dim=1, keepdim=True)


def change_brightness(pixels: Tensor, factors: Tensor) -> Tensor:
    """Multiply each image; 1 leaves it."""
    return (pixels * _column(factors)).clamp(0, 1)


def change_contrast(pixels: Tensor, factors: Tensor) -> Tensor:
    """Stretch each image about its mean luma; 1 leaves it, 0 makes it flat."""
    centre = luma(pixels).mean(dim=(2, 3), keepdim=True)
    return (centre + (pixels - centre) * _column(factors)).clamp(0, 1)


def change_saturation(pixels: Tensor, factors: Tensor) -> Tensor:
    """Stretch each pixel about its luma; 1 leaves it, 0 makes it grey."""
    grey = luma(pixels)
    return (grey + (pixels - grey) * _column(factors)).clamp(0, 1)


def change_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of each image by ``turns`` of the colour circle, at the same luma."""
    basis = pixels.new_tensor((_LUMA, *_CHROMA))
    angle = turns * 2 * math.pi
    cosine, sine = torch.cos(angle), torch.sin(angle)
    one, zero = torch.ones_like(angle), torch.zeros_like(angle)
    rows = [(one, zero, zero), (zero, cosine, -sine), (zero, sine, cosine)]
    turn = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
    matrices = torch.linalg.inv(basis) @ turn @ basis
    return torch.einsum("nij,njhw->nihw", matrices, pixels).clamp(0, 1)
