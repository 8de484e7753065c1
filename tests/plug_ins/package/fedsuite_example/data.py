"""Made images of stripes."""

from pathlib import Path

import numpy as np
import torch

from fedsuite.data import Split
from fedsuite.data.site import SiteData


def read(data_dir: Path | None, test_fraction: float) -> SiteData:
    """Noisy grey images 8x8 with a horizontal, a vertical or no stripe, 600 rows."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 160, (600, 1, 8, 8))
    labels = draws.integers(0, 3, 600)
    places = draws.integers(0, 8, 600)
    for image, label, place in zip(images, labels, places, strict=True):
        if label == 1:
            image[:, place] += 90
        elif label == 2:
            image[:, :, place] += 90
    features = torch.from_numpy(images.astype(np.uint8))
    classes = torch.from_numpy(labels)
    last = round(len(labels) * (1 - test_fraction))
    return SiteData(
        Split(features[:last], classes[:last]), Split(features[last:], classes[last:])
    )
