"""Real records of heart disease at four hospitals, one hospital per client.

A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, "Heart Disease", UCI Machine Learning
Repository, 1988: Cleveland, Budapest ("Hungarian"), Zurich and Basel ("Switzerland"), and
the V.A. in Long Beach. Each hospital has one CSV file with a header. The label ``num`` is
above 0 where an artery is narrowed by more than half.

Nine columns are numbers. Four columns are codes, made into one column of 0 and 1 per value
of a fixed code book. Ten columns of 0 and 1 mark missing values. A missing number becomes
the mean of the training rows; a missing code is 0 in all its columns. The test part takes
the same share of each hospital's ill and healthy patients.

Missing are empty cells, ``?``, ``-9``, and impossible values: a cholesterol or blood
pressure of 0 (all of Switzerland's cholesterol) and a ``ca`` above 3.
"""

import csv
import io
from pathlib import Path

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import DataError
from fedsuite.core.text import read_text
from fedsuite.data.folders import dataset_file
from fedsuite.data.specs import DatasetSpec, IntArray, RawData, Source
from fedsuite.data.tabular import Floats, one_hot, standardised

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""Names of owners 0 to 3."""

NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak", "ca")
CODES = {
    "cp": (1, 2, 3, 4),
    "restecg": (0, 1, 2),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
NEVER_MISSING = ("age", "sex", "cp")
LABEL = "num"

FILES = tuple(f"{hospital}.csv" for hospital in HOSPITALS)
FEATURES = (*NUMBERS, *CODES)
INDICATED = tuple(name for name in FEATURES if name not in NEVER_MISSING)
WIDTH = len(NUMBERS) + sum(map(len, CODES.values())) + len(INDICATED)

_MISSING = ("", "?", "-9", "-9.0")


class HeartDisease(Source):
    """The tables of the four hospitals."""

    @override
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        tables = [_read(dataset_file(spec, data_dir, name)) for name in FILES]
        labels = np.concatenate([(table[LABEL] > 0).astype(np.int64) for table in tables])
        ids = np.repeat(np.arange(len(tables)), [len(table[LABEL]) for table in tables])
        return RawData(
            features=np.concatenate([_encode(table) for table in tables]),
            labels=labels,
            ids=ids,
            strata=2 * ids + labels,
            owner_names=HOSPITALS,
        )

    @override
    def prepare(self, raw: RawData, train_rows: IntArray) -> RawData:
        return standardised(raw, train_rows, len(NUMBERS))


def _encode(table: dict[str, Floats]) -> Floats:
    numbers = np.stack([table[name] for name in NUMBERS], axis=1)
    codes = [
        one_hot(_positions(table[name], values), len(values))
        for name, values in CODES.items()
    ]
    missing = np.stack([np.isnan(table[name]) for name in INDICATED], axis=1)
    return np.concatenate([numbers, *codes, missing.astype(np.float32)], axis=1)


def _positions(column: Floats, values: tuple[int, ...]) -> IntArray:
    """Return each value's index in the code book, -1 for a missing value."""
    matches = column[:, None] == np.array(values)
    return np.where(matches.any(axis=1), matches.argmax(axis=1), -1)


def _read(file: Path) -> dict[str, Floats]:
    """Return the columns of one hospital; NaN is missing."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
        lines = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file}: not a readable CSV file ({error})") from error
    header = reader.fieldnames or []
    for name in (*FEATURES, LABEL):
        if name not in header:
            raise DataError(f"{file}: no column {name!r}; it has {', '.join(header)}")
    if not lines:
        raise DataError(f"{file}: holds no rows")
    table = {name: _numbers(file, name, lines) for name in (*FEATURES, LABEL)}
    for name in ("chol", "trestbps"):
        table[name][table[name] == 0] = np.nan
    table["ca"][table["ca"] > 3] = np.nan
    _check(file, table)
    return table


def _numbers(file: Path, name: str, lines: list[dict[str, str]]) -> Floats:
    where = (f"{file}, row {row}, {name}" for row in range(len(lines)))
    values = [_number(line[name], at) for line, at in zip(lines, where, strict=True)]
    return np.array(values, np.float32)


def _number(text: str | None, where: str) -> float:
    if text is None or text.strip() in _MISSING:
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(f"{where}: expected a number or nothing, not {text!r}")
    return value


def _check(file: Path, table: dict[str, Floats]) -> None:
    """Refuse missing labels and unknown codes."""
    for name in (*NEVER_MISSING, LABEL):
        absent = np.flatnonzero(np.isnan(table[name]))
        if absent.size:
            raise DataError(f"{file}, row {absent[0]}, {name}: must not be missing")
    for name, values in CODES.items():
        unknown = ~np.isnan(table[name]) & (_positions(table[name], values) < 0)
        if unknown.any():
            row = int(unknown.argmax())
            raise DataError(
                f"{file}, row {row}, {name}: {table[name][row]:g} is none of "
                f"{', '.join(map(str, values))}"
            )
