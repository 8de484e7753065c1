"""Description of a data set, and the arrays that its loader returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.keys import Key, Value

IntArray = npt.NDArray[np.int64]

IGNORED = -100
"""Label that counts neither in the loss nor in the accuracy."""


@dataclass(frozen=True)
class RawData:
    """All decoded rows of a data set, a published training part first.

    Parameters
    ----------
    features
        Unscaled values ``[rows, *input_shape]``, 8-bit for images. May be mapped from a
        file: never write into it.
    labels
        Class of each row, ``0 .. num_classes - 1``. Of sequences ``[rows, length]``, one
        target or :data:`IGNORED` per position.
    ids
        Natural owner of each row (a writer, a celebrity) as a number ``0, 1, ...``;
        ``None`` where the data set names none.
    num_train
        Number of training rows of the published split; ``None`` where there is no
        published split that separates rows of one owner.
    groups
        Number of each row's group, such as a patient or a comment. A group is never divided
        between training and test part. ``None`` without groups.
    strata
        Number of each row's stratum; the test part takes the same share of each stratum.
        ``None`` takes owners, or else classes, as strata.
    never_right
        Label that no prediction matches, such as the unknown word; ``None`` for no such
        label.
    """

    features: npt.NDArray[Any]
    labels: IntArray
    ids: IntArray | None = None
    num_train: int | None = None
    groups: IntArray | None = None
    strata: IntArray | None = None
    never_right: int | None = None


@dataclass(frozen=True)
class DatasetSpec:
    """Description of one data set.

    Parameters
    ----------
    name
        Value of the key ``dataset``.
    description
        One line for ``fedsuite datasets``.
    num_classes
        Number of classes; labels outside ``0 .. num_classes - 1`` are an error.
    input_shape
        Shape of one input, channels first, without the batch.
    load
        Function that reads the data, called with this description, the data folder
        (``None`` for the hub), and one keyword per key.
    mean, std
        Per-channel constants of the training part of images, in units of ``value /
        max_value``, which the key ``scaling = "standard"`` applies. Empty for rows other
        than images, which are never scaled.
    max_value
        Largest raw value: 255 for 8-bit images, 16 for digits.
    hub_id
        Name on the Hugging Face hub; empty for an embedded set.
    hub_folder
        Folder of the Parquet files inside the hub's repository.
    folder
        Name of the sub-folder of ``data-dir`` that holds the same Parquet files.
    train_splits, test_splits
        Beginnings of the files' names. Without ``test_splits`` all rows are pooled, and a
        test part is drawn (key ``test-fraction``).
    image_column, label_column, id_column
        Column names; ``id_column`` names the natural owner and may be empty.
    resize
        Whether images of another size are resized or refused.
    files
        Files below ``folder`` that are needed instead of the splits' Parquet files.
    prepare
        Function that prepares the rows once the training part is known, such as by
        standardising, called with the rows, the positions of the training part, and one
        keyword per key. The function may learn from the training part only.
    keys
        Keys of this data set alone.
    """

    name: str
    description: str
    num_classes: int
    input_shape: tuple[int, ...]
    load: Callable[..., RawData]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    max_value: int = 255
    hub_id: str = ""
    hub_folder: str = "data"
    folder: str = ""
    train_splits: tuple[str, ...] = ("train",)
    test_splits: tuple[str, ...] = ("test",)
    image_column: str = "image"
    label_column: str = "label"
    id_column: str = ""
    resize: bool = False
    files: tuple[str, ...] = ()
    prepare: Callable[..., RawData] | None = None
    keys: tuple[Key, ...] = ()

    @property
    def file_patterns(self) -> tuple[str, ...]:
        """Patterns of the files that a local folder must hold."""
        return self.files or tuple(
            f"{s}-*.parquet" for s in self.train_splits + self.test_splits
        )

    @property
    def is_image(self) -> bool:
        """Whether rows are images, which can be scaled, cropped and turned."""
        return bool(self.mean)

    def options(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values of this data set's keys, by argument name."""
        return {
            key.argument: key.parse(values.get(key.name, key.default)) for key in self.keys
        }
