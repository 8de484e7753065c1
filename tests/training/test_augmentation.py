"""Images shifted and mirrored, and where the draws come from."""

import pytest
import torch
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.training.augmentation import crop_and_flip, flip
from fedsuite.training.loop import TrainingOptions


def images(channels: int, size: tuple[int, int] = (28, 28), count: int = 4) -> torch.Tensor:
    return torch.rand(count, channels, *size, generator=torch_stream(0, "images"))


def test_flip_by_hand() -> None:
    pixels = torch.tensor([0.1, 0.2, 0.3]).reshape(1, 1, 1, 3).repeat(2, 3, 1, 1)
    flipped = flip(pixels, torch.tensor([True, False]))
    torch.testing.assert_close(flipped[0, 0, 0], torch.tensor([0.3, 0.2, 0.1]))
    torch.testing.assert_close(flipped[1], pixels[1])


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
