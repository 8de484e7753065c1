"""What a run's folder says of its model's inputs and outputs, in ``model.json``.

Without it the arrays of a model cannot be used rightly: which column is the first input,
what pixels were divided by, what class 3 is called.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from fedsuite.core.column_scaling import ColumnScaling
from fedsuite.core.errors import FedsuiteError, RunError
from fedsuite.core.reading import is_number
from fedsuite.core.tasks import CLASSIFICATION, TASKS
from fedsuite.data import FederatedData
from fedsuite.data.schema import TableSchema
from fedsuite.data.specs import DatasetSpec, Source
from fedsuite.results import layout

FORMAT = 1

_T = TypeVar("_T", TableSchema, ColumnScaling)

_MOST_AXES = 8
_MOST_CLASSES = 2**24


class _NoRows(Source):
    """Source of a data set of which the folder knows shape and scaling alone."""

    def load(self, spec: DatasetSpec, data_dir: Path | None) -> Any:
        raise RunError(f"data set {spec.name}: a run's folder holds no rows")


@dataclass(frozen=True)
class ModelFacts:
    """What a model takes and gives.

    Parameters
    ----------
    dataset
        Name of the data set.
    input_shape
        Shape of one input, without the batch.
    words
        Whether inputs are numbers of words, int64; others are float32.
    classes
        Name of each class, in the order of the outputs.
    columns
        Names of a table's inputs in their order, ``name[3]`` for a list of three. Empty
        where the server does not know them.
    columns_hash
        Their hash (:func:`fedsuite.data.columns.fingerprint`), which sites tell in place of
        the names; empty where nobody told it.
    max_value, mean, std
        How images were scaled: divided by the first, minus the second, divided by the
        third, by channel. Without numbers in ``mean`` inputs were taken as they are.
    task
        What is predicted.
    schema
        Columns of a table, with their kinds and missing values; None where there is none.
    column_scaling
        What was done to a table's columns of numbers; None where nothing was.
    """

    dataset: str
    input_shape: tuple[int, ...]
    words: bool
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    columns_hash: str = ""
    max_value: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    task: str = CLASSIFICATION.name
    schema: TableSchema | None = None
    column_scaling: ColumnScaling | None = None

    @classmethod
    def of(cls, data: FederatedData) -> Self:
        """Return what a run's data says."""
        schema = data.spec.schema
        mean, std = data.standardisation if data.spec.is_image else ((), ())
        return cls(
            dataset=data.spec.name,
            input_shape=tuple(data.input_shape),
            words=data.holds_words,
            classes=data.class_names,
            columns=data.columns if schema is None else schema.inputs,
            max_value=data.spec.max_value if data.spec.is_image else 1,
            mean=mean,
            std=std,
            task=data.spec.task,
            schema=schema,
            column_scaling=data.column_scaling,
        )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def is_image(self) -> bool:
        """Whether inputs are images, which are scaled."""
        return bool(self.mean)

    @property
    def holds_words(self) -> bool:
        """Whether inputs are numbers of words."""
        return self.words

    @property
    def spec(self) -> DatasetSpec:
        """The data set, as far as it is known here, for :func:`scale_inputs`."""
        return DatasetSpec(
            name=self.dataset,
            description="",
            num_classes=self.num_classes,
            input_shape=self.input_shape,
            source=_NoRows,
            mean=self.mean,
            std=self.std,
            max_value=self.max_value,
            task=self.task,
            schema=self.schema,
            words=self.words,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the facts in JSON's types."""
        values = {
            k: list(v) if isinstance(v, tuple) else v
            for k, v in asdict(replace(self, schema=None, column_scaling=None)).items()
        }
        for name in ("schema", "column_scaling"):
            entry = getattr(self, name)
            values[name] = None if entry is None else entry.to_dict()
        return {"format": FORMAT, **values}

    def text(self) -> str:
        """Return the facts as JSON, for a file that holds the model."""
        return json.dumps(self.as_json())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the facts of a run's folder; RunError if there are none."""
        path = folder / layout.MODEL_FACTS
        values = layout.read_optional(path)
        if values is None:
            raise RunError(
                f"{folder} has no {layout.MODEL_FACTS}, which says what its model "
                "takes: an older fedsuite wrote it; run the experiment again"
            )
        try:
            return cls._parsed(values)
        except (LookupError, TypeError, ValueError) as error:
            raise RunError(f"{path}: {error}; the file is damaged") from error

    @classmethod
    def _parsed(cls, values: Mapping[str, Any]) -> Self:
        """Return the facts of JSON; LookupError, TypeError or ValueError of others."""
        if values["format"] != FORMAT:
            raise ValueError(
                f"format {values['format']!r:.20}, this version reads {FORMAT}: read it "
                "with the fedsuite that wrote it"
            )
        shape = _list(values, "input_shape", int)
        if not 0 < len(shape) <= _MOST_AXES or min(shape) < 1 or max(shape) >= 2**31:
            raise ValueError("input_shape is no shape")
        classes = _list(values, "classes", str)
        if not 0 < len(classes) < _MOST_CLASSES:
            raise ValueError("there are no classes")
        mean, std = (_list(values, name, float) for name in ("mean", "std"))
        if len(mean) != len(std) or len(mean) not in (0, 1, shape[0]) or 0.0 in std:
            raise ValueError("mean and std do not fit input_shape")
        if type(values["words"]) is not bool or type(values["max_value"]) is not int:
            raise TypeError("words or max_value is of a wrong type")
        if values["max_value"] < 1:
            raise ValueError("max_value is no largest value")
        texts = ("dataset", "columns_hash", "task")
        if any(type(values[name]) is not str for name in texts):
            raise TypeError(f"{', '.join(texts)}: one is no text")
        if values["task"] not in TASKS:
            raise ValueError(f"task {values['task']!r:.40} is not known")
        columns = _list(values, "columns", str)
        if len(set(columns)) != len(columns):
            raise ValueError("columns names one twice")
        return cls(
            dataset=values["dataset"],
            input_shape=tuple(shape),
            words=values["words"],
            classes=tuple(classes),
            columns=tuple(columns),
            columns_hash=values["columns_hash"],
            max_value=values["max_value"],
            mean=tuple(map(float, mean)),
            std=tuple(map(float, std)),
            task=values["task"],
            schema=_optional(TableSchema, values["schema"]),
            column_scaling=_optional(ColumnScaling, values["column_scaling"]),
        )


def _optional(kind: type[_T], told: Any) -> _T | None:
    if told is not None and not isinstance(told, dict):
        raise TypeError(f"{kind.__name__}: expected a table")
    try:
        return None if told is None else kind.from_dict(told)
    except FedsuiteError as error:
        raise ValueError(str(error)) from error


def _list(values: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    entries = values[name]
    fits = is_number if kind is float else lambda entry: type(entry) is kind
    if type(entries) is not list or not all(map(fits, entries)):
        raise TypeError(f"{name} is no list of {kind.__name__}")
    return entries
