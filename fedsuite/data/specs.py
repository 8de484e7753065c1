"""Description of a data set, its source, and the arrays that the source returns."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedsuite.core.settings import Settings
from fedsuite.core.tasks import CLASSIFICATION, TASKS, Task
from fedsuite.data.schema import TableSchema

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
        target or :data:`IGNORED` per position. Of tasks without classes float32: a number
        per row, or ``[rows, labels]``.
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
    columns
        Names of a table's inputs in their order; empty where the source does not say them.
    owner_names
        Name of each natural owner, by its number in ``ids``; empty where they have none.
    """

    features: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    ids: IntArray | None = None
    num_train: int | None = None
    groups: IntArray | None = None
    strata: IntArray | None = None
    never_right: int | None = None
    columns: tuple[str, ...] = ()
    owner_names: tuple[str, ...] = ()

    @property
    def by_class(self) -> bool:
        """Whether each row has one class."""
        return self.labels.ndim == 1 and self.labels.dtype.kind in "iu"


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
        Number of classes; labels outside ``0 .. num_classes - 1`` are an error. Of another
        task the width of what models give.
    input_shape
        Shape of one input, channels first, without the batch.
    source
        Class that reads the data.
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
    task
        What models are trained for where the key ``task`` leaves it open; see
        :mod:`fedsuite.core.tasks`.
    reader
        Function of one's own that reads the rows, as ``module:name``; its rows then say
        classes and shape. Empty for a source that knows.
    schema
        Columns of a table; None where rows are no table, or nobody named its columns.
    columns
        Names of a table's inputs in their order; empty where nobody says them.
    class_names
        Name of each class or output, in the order of the labels; empty where they are
        numbers alone.
    words
        Whether inputs are numbers of words, int64, which an embedding takes.
    """

    name: str
    description: str
    num_classes: int
    input_shape: tuple[int, ...]
    source: "type[Source]"
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
    reader: str = ""
    task: str = CLASSIFICATION.name
    schema: TableSchema | None = None
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    words: bool = False

    @property
    def file_patterns(self) -> tuple[str, ...]:
        """Patterns of the files that a local folder must hold."""
        return self.files or tuple(
            f"{s}-*.parquet" for s in self.train_splits + self.test_splits
        )

    @property
    def labels(self) -> Task:
        """The task, which says what labels look like."""
        return TASKS[self.task]

    @property
    def is_image(self) -> bool:
        """Whether rows are images, which can be scaled, cropped and turned."""
        return bool(self.mean)


class Source(Settings, ABC):
    """Reader of a data set's rows; the keys are those of this data set alone."""

    READS_FOLDER: ClassVar[bool] = False
    """Whether ``data-dir`` is the folder of its files itself."""

    @abstractmethod
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        """Read the rows.

        Parameters
        ----------
        spec
            Description of the data set.
        data_dir
            The data folder; ``None`` for the hub.

        Raises
        ------
        DataError
            If the files are missing or broken.
        """

    def prepare(self, raw: RawData, train_rows: IntArray) -> RawData:
        """Return the rows ready for use, such as standardised.

        Only rows at the positions ``train_rows`` may be learned from.
        """
        return raw

    def shaped(self, spec: DatasetSpec) -> DatasetSpec:
        """Return the description with what keys say about the rows' shape."""
        return spec

    def described(self, spec: DatasetSpec, raw: RawData) -> DatasetSpec:
        """Return the description with what the rows say about their shape."""
        return spec
