"""Views of images: angles, colours, and where the draws come from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.training.augmentation import (
    augment,
    change_brightness,
    change_contrast,
    change_hue,
    change_saturation,
    crop_and_flip,
    flip,
    luma,
    rotate,
)
from fedsuite.training.loop import TrainingOptions


def images(channels: int, size: tuple[int, int] = (28, 28), count: int = 4) -> torch.Tensor:
    return torch.rand(count, channels, *size, generator=torch_stream(0, "images"))


def one(value: float) -> torch.Tensor:
    return torch.tensor([value])


def test_a_quarter_turn_is_counter_clockwise() -> None:
    pixels = images(1, (6, 6), 1)
    turned = rotate(pixels, one(90.0))
    torch.testing.assert_close(turned, torch.rot90(pixels, 1, (2, 3)), atol=1e-5, rtol=0)


def test_half_a_turn_of_an_oblong_image() -> None:
    pixels = images(3, (4, 8), 1)
    turned = rotate(pixels, one(180.0))
    torch.testing.assert_close(turned, pixels.flip(2, 3), atol=1e-5, rtol=0)


def test_an_oblong_image_is_turned_and_not_stretched() -> None:
    """A dot right of the centre of a wide image comes to lie as far above it."""
    pixels = torch.zeros(1, 1, 9, 15)
    pixels[0, 0, 4, 10] = 1.0
    turned = rotate(pixels, one(90.0))
    torch.testing.assert_close(turned[0, 0, 1, 7], torch.tensor(1.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(turned.sum(), torch.tensor(1.0), atol=1e-4, rtol=0)


def test_each_image_is_turned_by_its_own_angle_and_corners_come_in_black() -> None:
    pixels = torch.ones(2, 1, 28, 28)
    turned = rotate(pixels, torch.tensor([0.0, 45.0]))
    torch.testing.assert_close(turned[0], pixels[0])
    assert turned[1, 0, 0, 0] == 0
    torch.testing.assert_close(turned[1, 0, 14, 14], torch.tensor(1.0))


def test_grey_views_are_within_thirty_degrees() -> None:
    """A bar from the centre to the right edge, seen from far: its angle is the turn."""
    size, count = 65, 64
    pixels = torch.zeros(count, 1, size, size)
    pixels[:, 0, 32, 33:64] = 1.0
    views = augment(pixels, torch_stream(0, "views"))
    axis = torch.arange(size) - 32.0
    x = (views[:, 0] * axis).sum(dim=(1, 2))
    y = -(views[:, 0] * axis[:, None]).sum(dim=(1, 2))
    degrees = torch.rad2deg(torch.atan2(y, x))
    assert degrees.abs().max() < 30.5
    assert degrees.max() > 20 and degrees.min() < -20
    assert len(degrees.unique()) == count


def test_flip_by_hand() -> None:
    pixels = torch.tensor([0.1, 0.2, 0.3]).reshape(1, 1, 1, 3).repeat(2, 3, 1, 1)
    flipped = flip(pixels, torch.tensor([True, False]))
    torch.testing.assert_close(flipped[0, 0, 0], torch.tensor([0.3, 0.2, 0.1]))
    torch.testing.assert_close(flipped[1], pixels[1])


def test_colours_by_hand() -> None:
    """Two pixels: red 0.5 alone (luma 0.1495), and all 0.2 (luma 0.2); mean 0.17475."""
    pixels = torch.tensor([[0.5, 0.0, 0.0], [0.2, 0.2, 0.2]]).T.reshape(1, 3, 1, 2)
    torch.testing.assert_close(
        luma(pixels).flatten(), torch.tensor([0.1495, 0.2]), atol=1e-6, rtol=0
    )
    bright = change_brightness(pixels, one(1.2))
    torch.testing.assert_close(bright[0, 0, 0], torch.tensor([0.6, 0.24]))
    flat = change_contrast(pixels, one(0.0))
    torch.testing.assert_close(flat, torch.full_like(flat, 0.17475))
    half = change_saturation(pixels, one(0.5))
    expected = torch.tensor([[0.32475, 0.07475, 0.07475], [0.2, 0.2, 0.2]])
    torch.testing.assert_close(half[0, :, 0].T, expected, atol=1e-6, rtol=0)


@given(st.floats(-0.1, 0.1))
def test_hue_keeps_luma_and_grey(turns: float) -> None:
    colours = 0.4 + 0.1 * images(3, (4, 4), 1)
    turned = change_hue(colours, one(turns))
    torch.testing.assert_close(luma(turned), luma(colours), atol=1e-4, rtol=0)
    grey = torch.full((1, 3, 2, 2), 0.3)
    torch.testing.assert_close(change_hue(grey, one(turns)), grey, atol=1e-4, rtol=0)


def test_a_third_of_the_circle_changes_the_colours_and_three_bring_them_back() -> None:
    colours = 0.4 + 0.05 * images(3, (4, 4), 1)
    turned = colours
    for _ in range(3):
        turned = change_hue(turned, one(1 / 3))
    assert (change_hue(colours, one(1 / 3)) - colours).abs().max() > 0.01
    torch.testing.assert_close(turned, colours, atol=1e-4, rtol=0)


@pytest.mark.parametrize("change", [change_brightness, change_contrast, change_saturation])
def test_factor_one_changes_nothing(change) -> None:
    pixels = images(3)
    torch.testing.assert_close(change(pixels, torch.ones(4)), pixels)


def test_about_a_fifth_of_colour_views_are_grey_and_most_are_changed() -> None:
    """Of 2,000: 0.2 grey; 0.5 * 0.2 * 0.8 neither flipped, jittered nor grey."""
    pixels = images(3, (2, 3), 2_000)
    views = augment(pixels, torch_stream(0, "views"))
    spread = views.amax(dim=1) - views.amin(dim=1)
    grey = (spread.amax(dim=(1, 2)) < 1e-6).float().mean()
    same = (views - pixels).abs().amax(dim=(1, 2, 3)) < 1e-6
    assert abs(float(grey) - 0.2) < 0.04
    assert abs(float(same.float().mean()) - 0.08) < 0.03


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_pixels_and_repeat_without_global_state(channels: int) -> None:
    pixels = images(channels)
    before = pixels.clone()
    state = torch.get_rng_state()
    first = augment(pixels, torch_stream(5, "views"))
    again = augment(pixels, torch_stream(5, "views"))
    other = augment(pixels, torch_stream(6, "views"))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(pixels, before)
    assert first.shape == pixels.shape
    assert first.min() >= 0 and first.max() <= 1


@pytest.mark.parametrize("shape", [(4, 2, 8, 8), (4, 12), (4, 8, 8)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="lsr-gamma needs grey or colour images"):
        augment(torch.zeros(shape), torch_stream(0, "views"))


def test_crops_are_windows_of_the_padded_image() -> None:
    """Each result is one of the 81 shifts of its image, or a mirrored one; both occur."""
    pixels = 1 + images(3, (6, 8), 32)
    found = crop_and_flip(pixels, torch_stream(0, "test"))
    padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
    shifts, mirrored = set(), 0
    for image, whole in zip(found, padded, strict=True):
        matches = [
            (top, left, turned)
            for top in range(9)
            for left in range(9)
            for turned in (False, True)
            for window in [whole[:, top : top + 6, left : left + 8]]
            if torch.equal(image, window.flip(2) if turned else window)
        ]
        [(top, left, turned)] = matches
        shifts.add((top, left))
        mirrored += turned
    assert len(shifts) > 10
    assert 4 < mirrored < 28


def test_without_padding_images_are_only_mirrored() -> None:
    pixels = images(1, (5, 5), 40)
    found = crop_and_flip(pixels, torch_stream(1, "test"), padding=0)
    kept = [torch.equal(a, b) for a, b in zip(found, pixels, strict=True)]
    turned = [torch.equal(a, b.flip(2)) for a, b in zip(found, pixels, strict=True)]
    assert all(a != b for a, b in zip(kept, turned, strict=True))
    assert 5 < sum(kept) < 35


def test_tables_cannot_be_cropped() -> None:
    with pytest.raises(ConfigError, match="crop-and-flip needs images"):
        crop_and_flip(torch.zeros(3, 13), torch_stream(0, "test"))


@pytest.mark.parametrize(("black", "equal"), [(True, True), (False, False)])
def test_training_differs_by_the_images_alone(black: bool, equal: bool) -> None:
    """Cropped black images are black: the same batches give the same model."""
    pixels = images(1, (8, 8), 12) * (0.0 if black else 1.0)
    data = Split(pixels, torch.arange(12) % 3)

    def trained(*, crop: bool) -> list[bytes]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        options = TrainingOptions(batch_size=4, crop_and_flip=crop)
        client = FedAvgClient(model, data, data, training=options)
        arrays, _, _ = client.fit(client.get_parameters({}), {})
        return [array.tobytes() for array in arrays]

    assert trained(crop=True) == trained(crop=True)
    assert (trained(crop=True) == trained(crop=False)) is equal
