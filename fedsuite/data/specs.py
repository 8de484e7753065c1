"""What a data set is: its description and the arrays that its loader returns."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RawData:
    """All rows of a data set, decoded; the training part comes first where there is one.

    Parameters
    ----------
    features
        Unscaled values ``[rows, *input_shape]``, 8-bit for images. May be mapped from a
        file: never write into it.
    labels
        Class of each row, ``0 .. num_classes - 1``.
    ids
        Natural owner of each row (a writer, a celebrity) as a number ``0, 1, ...``;
        ``None`` where the data set names none.
    num_train
        Number of training rows of the published split; ``None`` where there is no
        published split that separates rows of one owner.
    """

    features: npt.NDArray[np.uint8]
    labels: IntArray
    ids: IntArray | None = None
    num_train: int | None = None


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
        Reads the data: called with this description and the data folder (``None`` for
        the hub).
    mean, std
        Per-channel constants of the training part, in units of ``value / max_value``;
        what the key ``scaling = "standard"`` applies.
    max_value
        Largest raw value: 255 for 8-bit images, 16 for digits.
    hub_id
        Name on the Hugging Face hub; empty for an embedded set.
    hub_folder
        Folder of the Parquet files inside the hub's repository.
    folder
        Name of the sub-folder of ``data-dir`` that holds the same Parquet files.
    train_splits, test_splits
        Names that the files start with. Without ``test_splits`` all rows are pooled and
        a test part is drawn (key ``test-fraction``).
    image_column, label_column, id_column
        Column names; ``id_column`` names the natural owner and may be empty.
    resize
        Whether images of another size are resized; otherwise they are an error.
    """

    name: str
    description: str
    num_classes: int
    input_shape: tuple[int, ...]
    load: Callable[["DatasetSpec", Path | None], RawData]
    mean: tuple[float, ...]
    std: tuple[float, ...]
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

    @property
    def file_patterns(self) -> tuple[str, ...]:
        """Names of the Parquet files that a local folder must hold, with wildcards."""
        return tuple(f"{s}-*.parquet" for s in self.train_splits + self.test_splits)
