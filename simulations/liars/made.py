"""Made rows of 2 and of 100 classes: a Gaussian cloud around one centre a class.

An experiment names them as ``dataset = "simulations.liars.made:two_classes"``.
"""

from pathlib import Path

import numpy as np
import torch

from fedsuite.data import Split
from fedsuite.data.site import SiteData

_FEATURES = 24
_NOISE = 0.5


def two_classes(_: Path | None, test_fraction: float) -> SiteData:
    """Return 600 rows of two classes."""
    return _clouds(2, 300, test_fraction)


def hundred_classes(_: Path | None, test_fraction: float) -> SiteData:
    """Return 2,000 rows of a hundred classes."""
    return _clouds(100, 20, test_fraction)


def _clouds(num_classes: int, rows_of_each: int, test_fraction: float) -> SiteData:
    draws = np.random.default_rng(num_classes)
    centres = draws.standard_normal((num_classes, _FEATURES))
    labels = np.tile(np.arange(num_classes), rows_of_each)
    noise = _NOISE * draws.standard_normal((len(labels), _FEATURES))
    rows = (centres[labels] + noise).astype(np.float32)
    num_test = int(test_fraction * len(labels))
    parts = (slice(num_test, None), slice(num_test))
    train, test = (
        Split(torch.from_numpy(rows[part]), torch.from_numpy(labels[part]))
        for part in parts
    )
    return SiteData(train, test)
