"""FLamby's Fed-Heart-Disease: its rows, its split and its network.

J. Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated
Learning in Realistic Healthcare Settings", NeurIPS 2022 (datasets and benchmarks),
arXiv:2210.04620; repository owkin/FLamby, commit edacf54.

The rows are those of the four hospitals of ``heart_disease`` without ``slope``, ``ca`` and
``thal``, and without the rows that still lack a value: 303, 261, 46 and 130. ``cp`` and
``restecg`` become a column of 0 and 1 for each value but the first. Two thirds of a
hospital's rows are for training, by a fixed draw (of equal shares of ill and healthy where
there are more than two of each). Each hospital scales its rows by mean and deviation of its
own training rows.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from fedsuite.core.errors import DataError
from fedsuite.core.rng import stream_seed
from fedsuite.data import DataSettings, Split
from fedsuite.data.site import SiteData
from fedsuite.data.specs import IntArray

SEEDS = range(42, 47)
"""FLamby's seeds."""

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""FLamby's centres 0 to 3."""

NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
CODES = {"cp": (2, 3, 4), "restecg": (1, 2)}
"""Values that have a column; the first value of each has none."""


def read(data_dir: Path | None, test_fraction: float) -> SiteData:
    """Return the rows of the four hospitals, owned by FLamby's numbers of them."""
    if test_fraction != DataSettings().test_fraction:
        raise DataError("the split is FLamby's: leave test-fraction out")
    if data_dir is None:
        raise DataError("name the folder above heart_disease: data-dir, or FEDSUITE_DATA")
    folder = data_dir / "heart_disease"
    tables = [_table(folder / f"{hospital}.csv") for hospital in HOSPITALS]
    return joined([prepared(*table) for table in tables])


def joined(hospitals: list[tuple[Split, Split]]) -> SiteData:
    """Return the training and test rows of hospitals as one data set with owners."""
    train, test = zip(*hospitals, strict=True)
    return SiteData(_whole(train), _whole(test), owners=(_owners(train), _owners(test)))


def _whole(parts: Sequence[Split]) -> Split:
    features, labels = (
        [getattr(p, kind) for p in parts] for kind in ("features", "labels")
    )
    return Split(torch.cat(features), torch.cat(labels))


def _owners(parts: Sequence[Split]) -> IntArray:
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def prepared(rows: Tensor, labels: Tensor) -> tuple[Split, Split]:
    """Return a hospital's training and test rows, scaled, in their order.

    Parameters
    ----------
    rows
        float32 ``[rows, 13]``.
    labels
        int64 ``[rows]``, 0 or 1.
    """
    counts = np.bincount(labels, minlength=2)
    both = bool((counts > 2).all())
    train, test = train_test_split(
        np.arange(len(labels)),
        train_size=0.66,
        test_size=1.0 - 0.66,
        random_state=43,
        stratify=labels.numpy() if both else None,
    )
    known = rows[np.sort(train)]
    scaled = (rows - known.mean(0)) / (known.std(0) + 1e-9)
    parts = (np.sort(part) for part in (train, test))
    first, second = (Split(scaled[part], labels[part]) for part in parts)
    return first, second


def _table(file: Path) -> tuple[Tensor, Tensor]:
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    used = (*NUMBERS, *CODES, "num")
    whole = [{name: float(row[name]) for name in used} for row in rows if _is_whole(row)]
    columns = [
        *([row[name] for row in whole] for name in NUMBERS),
        *([row[n] == v for row in whole] for n, values in CODES.items() for v in values),
    ]
    labels = torch.tensor([row["num"] > 0 for row in whole]).long()
    return torch.tensor(np.array(columns, np.float32).T), labels


def _is_whole(row: dict[str, str]) -> bool:
    return all(row[name].strip() for name in (*NUMBERS, *CODES))


class Baseline(nn.Module):
    """FLamby's logistic regression: one score, beside a score of 0 for the healthy.

    The cross-entropy of the two is FLamby's binary cross-entropy, and so are its gradients.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_shape[0], 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of healthy and ill, ``[rows, 2]``."""
        score = self.linear(features)
        return torch.cat([torch.zeros_like(score), score], 1)


def network(input_shape: tuple[int, ...], num_classes: int) -> Baseline:
    """Return the network with FLamby's first parameters of the experiment's seed.

    FLamby draws them from the seed itself, and fedsuite from a stream of the seed. Seeds
    other than :data:`SEEDS` have fedsuite's.
    """
    streams = {stream_seed(seed, "model"): seed for seed in SEEDS}
    drawn = torch.initial_seed()
    torch.default_generator.manual_seed(streams.get(drawn, drawn))
    return Baseline(input_shape, num_classes)
