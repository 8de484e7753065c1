"""What a table's columns are: names, order, kinds, target, and what is done to values.

A schema is written once, as TOML or JSON, and all who have a part of the table read it::

    columns = ["age", "bp", "sex"]
    target = "died"
    classes = ["no", "yes"]
    missing = "mean"

    [categories]
    sex = ["f", "m"]

From the schema follow the inputs of a network, the same at every site whatever values it
has: a column of numbers is one input, ``name[3]`` (lists of three) is three, a category is
one input per declared value. With ``missing = "indicator"`` each input of numbers has a
second one, behind all others, which is 1 where the value was missing.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.reading import parsed
from fedsuite.core.text import escape_taken, read_text, toml
from fedsuite.data.columns import difference
from fedsuite.data.table_values import (
    as_arrow,
    category_positions,
    class_numbers,
    number_rows,
    token_rows,
)

Missing = Literal["refuse", "mean", "indicator"]
MISSING: tuple[Missing, ...] = ("refuse", "mean", "indicator")

MOST_COLUMNS = 10_000
"""Columns, categories and classes that a schema may have, each."""

_LISTS = re.compile(r"(?P<name>.+)\[(?P<length>\d+)\]")
_KEYS = (
    "columns",
    "target",
    "classes",
    "num-classes",
    "categories",
    "missing",
    "tokens",
    "id-column",
)


def name_and_length(declared: str) -> tuple[str, int]:
    """Return a column's name, and the entries of its lists: 3 of ``name[3]``, 0 of none."""
    lists = _LISTS.fullmatch(declared)
    return (lists["name"], int(lists["length"])) if lists else (declared, 0)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name
        Its name in the table.
    kind
        ``number``, ``category`` or ``token`` (the number of a word).
    length
        Entries of its lists; 0 for a column without lists.
    values
        Declared values of a category, in the order of their inputs.
    """

    name: str
    kind: Literal["number", "category", "token"]
    length: int = 0
    values: tuple[str, ...] = ()

    @property
    def declared(self) -> str:
        """The name as a schema writes it, ``name[3]`` for lists of three."""
        return f"{self.name}[{self.length}]" if self.length else self.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its inputs."""
        if self.kind == "category":
            return tuple(f"{self.name}={value}" for value in self.values)
        if self.length:
            return tuple(f"{self.name}[{k}]" for k in range(self.length))
        return (self.name,)


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table, its target, and what training does to both.

    Parameters
    ----------
    columns
        Names of the input columns in order; ``name[3]`` has lists of three.
    target
        Column of the target. Several, comma-separated, are the columns of a matrix.
    classes
        Names of the target's classes in the order of their numbers; empty where the
        column has the numbers, from 0.
    num_classes
        Number of classes; 0 for targets that are numbers themselves.
    categories
        Declared values of columns that hold categories.
    missing
        What is done to a missing value: ``refuse``, or the ``mean`` of all clients'
        training rows, or the mean and an ``indicator``. A missing category is 0 in all its
        inputs.
    tokens
        Size of the vocabulary where columns hold the numbers of words, 0 to ``tokens`` - 1;
        0 for a table.
    id_column
        Column of what a row is about, such as a patient; empty for none.
    """

    columns: tuple[str, ...]
    target: str = "label"
    classes: tuple[str, ...] = ()
    num_classes: int = 2
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Missing = "refuse"
    tokens: int = 0
    id_column: str = ""

    def __post_init__(self) -> None:
        if self.classes:
            object.__setattr__(self, "num_classes", len(self.classes))
        _check(self)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def of_columns(self) -> tuple[Column, ...]:
        """The input columns in order."""
        columns = []
        for declared in self.columns:
            name, length = name_and_length(declared)
            kind: Literal["number", "category", "token"] = "number"
            if declared in self.categories:
                kind, name, length = "category", declared, 0
            elif self.tokens:
                kind = "token"
            columns.append(Column(name, kind, length, self.categories.get(declared, ())))
        return tuple(columns)

    @property
    def dtypes(self) -> dict[str, str]:
        """Kind of each column by its declared name: number, category or token."""
        return {column.declared: column.kind for column in self.of_columns}

    def declared_values(
        self, names: Sequence[str] = (), target: str = ""
    ) -> dict[str, tuple[str, ...]]:
        """Return the values that are declared of columns, by a table's names of them.

        Parameters
        ----------
        names, target
            The table's names of the columns, in the schema's order, and of the target; by
            default the schema's.
        """
        own = tuple(names) or tuple(column.name for column in self.of_columns)
        pairs = zip(own, self.of_columns, strict=True)
        values = {name: column.values for name, column in pairs if column.values}
        of_target = _names(target) or self.targets
        return values | (dict.fromkeys(of_target, self.classes) if self.classes else {})

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the target's columns, usually one."""
        return _names(self.target)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of a network's inputs, in order."""
        names = [name for column in self.of_columns for name in column.inputs]
        if self.missing == "indicator":
            names += [f"{name} is missing" for name in self.number_inputs]
        return tuple(names)

    @property
    def number_inputs(self) -> tuple[str, ...]:
        """Names of the inputs that are numbers, which alone are scaled."""
        numbers = (column for column in self.of_columns if column.kind == "number")
        return tuple(name for column in numbers for name in column.inputs)

    @cached_property
    def number_positions(self) -> tuple[int, ...]:
        """Positions of the inputs that are numbers."""
        positions: list[int] = []
        first = 0
        for column in self.of_columns:
            width = len(column.inputs)
            if column.kind == "number":
                positions += range(first, first + width)
            first += width
        return tuple(positions)

    @property
    def needs_means(self) -> bool:
        """Whether missing values take means, which clients have to add up."""
        return self.missing != "refuse" and bool(self.number_positions)

    def encoded(
        self,
        table: Any,
        names: Sequence[str] = (),
        where: str = "",
        faults: list[str] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the inputs of a table's rows, not scaled; NaN where a number is missing.

        Parameters
        ----------
        table
            A pyarrow Table, a pandas DataFrame or a mapping of arrays, with columns in any
            order, and more of them.
        names
            Names of the columns in this table, in the order of the schema; by default those
            of the schema.
        where
            Place of the table, for errors.
        faults
            Gets all that is wrong, for a caller that says everything at once.

        Returns
        -------
        ndarray
            float32 ``[rows, inputs]``; int64 for tokens.

        Raises
        ------
        DataError
            If anything is wrong and there is no list of faults; one line that has all.
        """
        arrow = as_arrow(table, where)
        wrong: list[str] = [] if faults is None else faults
        before = len(wrong)
        own = tuple(names) or tuple(column.name for column in self.of_columns)
        refuses = self.missing == "refuse"
        parts: list[npt.NDArray[Any]] = []
        for column, name in zip(self.of_columns, own, strict=True):
            try:
                if column.kind == "category":
                    parts.append(
                        category_positions(arrow, name, column.values, refuses=refuses)
                    )
                elif column.kind == "token":
                    parts.append(token_rows(arrow, name, column.length, self.tokens))
                else:
                    parts.append(number_rows(arrow, name, column.length, refuses=refuses))
            except DataError as error:
                wrong.append(str(error))
        if faults is None and wrong:
            raise DataError(f"{where}: {one_answer(wrong)}" if where else one_answer(wrong))
        if len(wrong) > before:
            return np.empty((0, len(self.inputs)), np.int64 if self.tokens else np.float32)
        rows = np.concatenate(parts, axis=1)
        if self.missing == "indicator":
            missing = np.isnan(rows[:, list(self.number_positions)])
            rows = np.concatenate([rows, missing.astype(np.float32)], axis=1)
        return rows

    def labels(self, table: Any, name: str = "", where: str = "") -> npt.NDArray[Any]:
        """Return the targets of a table's rows.

        Returns
        -------
        ndarray
            int64 classes ``[rows]``; float32 numbers where :attr:`num_classes` is 0; of
            several targets ``[rows, targets]``.

        Raises
        ------
        DataError
            If one is missing or no target.
        """
        arrow = as_arrow(table, where)
        names = _names(name) or self.targets
        if self.num_classes == 0:
            columns = [number_rows(arrow, own, 0, refuses=True) for own in names]
            matrix: npt.NDArray[Any] = np.concatenate(columns, axis=1)
        else:
            named = self.classes, self.num_classes
            matrix = np.stack([class_numbers(arrow, own, *named) for own in names], axis=1)
        return matrix[:, 0] if len(names) == 1 else matrix

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that sites must share, and nothing of the rows."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def difference(self, other: "TableSchema") -> str:
        """Return what differs from another schema, naming both sides; empty of the same."""
        parts = []
        if reason := difference(self.columns, other.columns):
            parts.append(f"columns: this one {reason}")
        mine, theirs = self.to_dict(), other.to_dict()
        for name in _KEYS[1:]:
            if mine.get(name) != theirs.get(name):
                sides = (json.dumps(side.get(name)) for side in (mine, theirs))
                parts.append("{}: this one has {}, the other {}".format(name, *sides))
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as TOML and JSON have it."""
        told: dict[str, Any] = {"columns": list(self.columns), "target": self.target}
        if self.classes:
            told["classes"] = list(self.classes)
        else:
            told["num-classes"] = self.num_classes
        if self.categories:
            told["categories"] = {k: list(v) for k, v in self.categories.items()}
        told["missing"] = self.missing
        if self.tokens:
            told["tokens"] = self.tokens
        if self.id_column:
            told["id-column"] = self.id_column
        return told

    def to_json(self) -> str:
        """Return the schema as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any], where: str = "schema") -> "TableSchema":
        """Read what :meth:`to_dict` wrote, or a person.

        Raises
        ------
        ConfigError
            If a key is unknown or a value is none of its kind.
        """
        if unknown := [name for name in told if name not in _KEYS]:
            raise ConfigError(
                f"{where}: unknown key {unknown[0]!r}: known are {', '.join(_KEYS)}"
            )
        categories = told.get("categories", {})
        if not isinstance(categories, Mapping):
            raise ConfigError(f"{where}: categories: expected a table of lists")
        try:
            return cls(
                _list(where, "columns", told.get("columns", ())),
                _text(where, "target", told.get("target", "label")),
                _list(where, "classes", told.get("classes", ())),
                _whole(where, "num-classes", told.get("num-classes", 2)),
                {str(k): _list(where, f"categories.{k}", v) for k, v in categories.items()},
                cast(Missing, _text(where, "missing", told.get("missing", "refuse"))),
                _whole(where, "tokens", told.get("tokens", 0)),
                _text(where, "id-column", told.get("id-column", "")),
            )
        except (ConfigError, DataError) as error:
            words = str(error)
            raise ConfigError(
                words if words.startswith(where) else f"{where}: {words}"
            ) from None

    @classmethod
    def parse(cls, text: str, where: str = "schema") -> "TableSchema":
        """Read the content of a schema file, TOML or JSON.

        Raises
        ------
        ConfigError
            If it is neither, or no schema.
        """
        try:
            is_json = text.lstrip().startswith("{")
            told = parsed(text) if is_json else toml(text.encode())
        except ValueError as error:
            raise ConfigError(
                f"{where}: neither TOML nor JSON ({error}): mend it"
            ) from None
        if not isinstance(told, dict):
            raise ConfigError(
                f"{where}: expected a table of keys, such as columns and target"
            )
        return cls.from_dict(told, where)

    @classmethod
    def load(cls, path: Path) -> "TableSchema":
        """Read a schema file.

        Raises
        ------
        ConfigError
            If it cannot be read, or is no schema.
        """
        try:
            text = read_text(path)
        except OSError as error:
            raise ConfigError(f"cannot read schema {path}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"schema {path}: {error}") from None
        return cls.parse(text, f"schema {path}")


def one_answer(faults: Sequence[str]) -> str:
    """Return all faults in one line, numbered if they are several."""
    if len(faults) == 1:
        return faults[0]
    listed = (f"({k}) {fault}" for k, fault in enumerate(faults, 1))
    return f"{len(faults)} faults: {'; '.join(listed)}"


def _check(schema: TableSchema) -> None:
    """Refuse a schema that does not fit together."""
    every = [*schema.columns, *schema.targets, *filter(None, [schema.id_column])]
    lists = [schema.columns, schema.classes, *schema.categories.values()]
    if not schema.columns or not schema.targets:
        raise ConfigError("name at least one column and a target")
    if max(map(len, lists)) > MOST_COLUMNS:
        raise ConfigError(f"more than {MOST_COLUMNS} columns, classes or categories")
    if twice := [name for name in every if every.count(name) > 1]:
        raise ConfigError(
            f"column {twice[0]!r} stands there twice, among columns, target and id-column"
        )
    for kind, values in {"classes": schema.classes, **schema.categories}.items():
        if len(set(values)) < len(values):
            raise ConfigError(f"{kind}: a value stands there twice")
    for name in every:
        if not name or name != name.strip() or escape_taken(name):
            raise ConfigError(f"name {name!r}: expected text without blanks around it")
    if odd := [name for name in schema.categories if name not in schema.columns]:
        raise ConfigError(f"categories of {odd[0]!r}, which is none of the columns")
    if empty := [name for name, values in schema.categories.items() if not values]:
        raise ConfigError(f"categories of {empty[0]!r}: name at least one value")
    if schema.missing not in MISSING:
        raise ConfigError(
            f"missing = {schema.missing!r}: expected {', '.join(MISSING[:-1])} or "
            f"{MISSING[-1]}"
        )
    if schema.num_classes not in (0, *range(2, MOST_COLUMNS + 1)):
        raise ConfigError(
            f"{schema.num_classes} classes: expected at least 2, or 0 for a target that is "
            "a number"
        )
    if schema.tokens < 0 or (
        schema.tokens and (schema.categories or schema.missing != "refuse")
    ):
        raise ConfigError(
            f"tokens = {schema.tokens}: rows of word numbers have no categories, and no "
            "missing values"
        )
    lengths = [column.length for column in schema.of_columns]
    if sum(lengths) > MOST_COLUMNS or any(name.endswith("[0]") for name in schema.columns):
        raise ConfigError(f"lists of columns have 1 to {MOST_COLUMNS} entries in all")


def _names(text: str) -> tuple[str, ...]:
    """Return comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _list(where: str, name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return _names(value)
    if not isinstance(value, Sequence) or not all(
        isinstance(entry, str | int) for entry in value
    ):
        raise ConfigError(f"{where}: {name} = {value!r}: expected a list of names"[:300])
    # TOML's true is a value of a column of booleans, which Arrow writes in small letters.
    return tuple(
        str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in value
    )


def _text(where: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {name} = {value!r}: expected text in quotes"[:300])
    return value


def _whole(where: str, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: {name} = {value!r}: expected a whole number"[:300])
    return value
