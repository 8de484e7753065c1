"""Generated rows: the data of a million clients, and images where the real sets lack."""

from pathlib import Path

import torch

from fedsuite.data import Split
from fedsuite.data.site import SiteData

TRAIN_ROWS, TEST_ROWS = 3_000_000, 1_000_000
CLASSES = 10


def rows(data_dir: Path | None, test_fraction: float) -> SiteData:
    """Return four million rows of four numbers; the arguments play no part."""
    stream = torch.Generator().manual_seed(0)

    def part(count: int) -> Split:
        features = torch.randn(count, 4, generator=stream)
        return Split(features, (features[:, 0] > 0).long())

    return SiteData(part(TRAIN_ROWS), part(TEST_ROWS))


def images(shape: tuple[int, ...], train: int, test: int) -> SiteData:
    """Return images of ten classes, the same in every process: a pattern, and noise.

    Parameters
    ----------
    shape
        Channels, height, width.
    train, test
        How many, as many of each class.
    """
    stream = torch.Generator().manual_seed(0)

    def noise(count: int) -> torch.Tensor:
        return torch.randint(128, (count, *shape), generator=stream, dtype=torch.uint8)

    patterns = noise(CLASSES)

    def part(count: int) -> Split:
        labels = torch.arange(count) % CLASSES
        return Split(noise(count).add_(patterns[labels]), labels)

    return SiteData(part(train), part(test))


def cifar10(data_dir: Path | None, test_fraction: float) -> SiteData:
    """Return as many images as CIFAR-10 has, of their shape."""
    return images((3, 32, 32), 50_000, 10_000)


def fashion_mnist(data_dir: Path | None, test_fraction: float) -> SiteData:
    """Return as many images as Fashion-MNIST has, of their shape."""
    return images((1, 28, 28), 60_000, 10_000)


def few_cifar10(data_dir: Path | None, test_fraction: float) -> SiteData:
    """Return a thousand images of CIFAR-10's shape, and 200 for tests."""
    return images((3, 32, 32), 1_000, 200)


def few_fashion_mnist(data_dir: Path | None, test_fraction: float) -> SiteData:
    """Return a thousand images of Fashion-MNIST's shape, and 200 for tests."""
    return images((1, 28, 28), 1_000, 200)
