"""Small data sets of each task: ``dataset = "tests.tiny_tasks:NAME"``."""

import numpy as np
import torch
from torch import Tensor

from fedsuite.data import Split
from fedsuite.data.site import SiteData

ROWS = (64, 32)


def _inputs(part: int) -> Tensor:
    rng = np.random.default_rng(part)
    return torch.from_numpy(rng.normal(size=(ROWS[part], 4)).astype(np.float32))


def _data(label) -> SiteData:
    train, test = (Split(x, label(x)) for x in (_inputs(0), _inputs(1)))
    return SiteData(train, test)


def two_classes(data_dir, test_fraction):
    """Return rows of two classes."""
    return _data(lambda x: (x[:, 0] > 0).long())


def labels(data_dir, test_fraction):
    """Return rows of three labels."""
    return _data(lambda x: (x[:, :3] > 0).float())


def numbers(data_dir, test_fraction):
    """Return rows of one number."""
    return _data(lambda x: x[:, 0] * 2 + 1)


def times(data_dir, test_fraction):
    """Return rows of a time and whether its event was seen."""
    return _data(lambda x: torch.stack([torch.exp(x[:, 0]), (x[:, 1] < 1).float()], dim=1))
