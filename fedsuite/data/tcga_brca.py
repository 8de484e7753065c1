"""Real records of breast cancer from six regions, one region per client.

The Cancer Genome Atlas, breast invasive carcinoma, clinical data: J. Liu et al., "An
Integrated TCGA Pan-Cancer Clinical Data Resource to Drive High-Quality Survival Outcome
Analytics", Cell 173(2):400-416, 2018. Columns as in M. Andreux, A. Manoel, R. Menuet,
C. Saillard, C. Simpson, "Federated Survival Analysis with Discrete-Time Cox Models",
arXiv:2006.08997; regions and split as in J. Ogier du Terrail et al., "FLamby", NeurIPS
2022, arXiv:2210.04620.

``brca.csv`` has the column ``pid``, 39 columns of numbers, ``E`` (1: death observed, 0:
censored) and ``T`` (days). ``train_test_split.csv`` has ``pid`` and ``fold2``, such as
``train_0``: the published split, and the region. Patients of no region are left out.

Numbers stay as they are: the age in years, beside columns of 0 and 1. ``scaling =
"federated"`` brings all columns to mean 0 and deviation 1.
"""

import csv
import io
from pathlib import Path

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import DataError
from fedsuite.core.text import read_text
from fedsuite.data.folders import dataset_file
from fedsuite.data.specs import DatasetSpec, RawData, Source

REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
"""Names of owners 0 to 5."""

FILES = ("brca.csv", "train_test_split.csv")
WIDTH = 39
_PATIENT, _EVENT, _TIME = "pid", "E", "T"
_FOLD = "fold2"


class TcgaBrca(Source):
    """The table of the six regions, with a published test part of each."""

    @override
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        file, folds = (dataset_file(spec, data_dir, name) for name in FILES)
        names, lines = _read(file, (_PATIENT, _EVENT, _TIME))
        columns = [name for name in names if name not in (_PATIENT, _EVENT, _TIME)]
        if len(columns) != WIDTH:
            raise DataError(f"{file}: {len(columns)} columns of inputs; expected {WIDTH}")
        part_of = _parts(folds)
        rows: dict[str, list[list[float]]] = {"train": [], "test": []}
        ids: dict[str, list[int]] = {"train": [], "test": []}
        for number, line in enumerate(lines):
            if (place := part_of.get(line[_PATIENT])) is None:
                continue
            where = f"{file}, row {number}"
            part, region = place
            numbers = [
                _number(line[name], f"{where}, {name}")
                for name in (*columns, _TIME, _EVENT)
            ]
            if numbers[-1] not in (0.0, 1.0) or numbers[-2] < 0:
                raise DataError(
                    f"{where}: T = {numbers[-2]:g} and E = {numbers[-1]:g}: expected a "
                    "time from 0, and 1 or 0"
                )
            rows[part].append(numbers)
            ids[part].append(region)
        if not rows["train"] or not rows["test"]:
            raise DataError(f"{folds}: no patient of {file} has a part and a region")
        table = np.array([*rows["train"], *rows["test"]], np.float32)
        return RawData(
            features=table[:, :WIDTH],
            labels=table[:, WIDTH:],
            ids=np.array([*ids["train"], *ids["test"]], np.int64),
            num_train=len(rows["train"]),
            owner_names=REGIONS,
        )


def _parts(file: Path) -> dict[str, tuple[str, int]]:
    """Return the part and the region of each patient."""
    parts = {}
    for number, line in enumerate(_read(file, (_PATIENT, _FOLD))[1]):
        part, _, region = line[_FOLD].partition("_")
        known = [str(region) for region in range(len(REGIONS))]
        if part not in ("train", "test") or region not in known:
            raise DataError(
                f"{file}, row {number}, {_FOLD}: expected a part and a region, such as "
                f"train_0, not {line[_FOLD]!r}"
            )
        parts[line[_PATIENT]] = part, int(region)
    return parts


def _read(file: Path, needed: tuple[str, ...]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of a CSV file's columns, and its lines; short ones are refused."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(file), newline=""), restval="")
        lines = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file}: not a readable CSV file ({error})") from error
    header = list(reader.fieldnames or [])
    for name in needed:
        if name not in header:
            raise DataError(f"{file}: no column {name!r}; it has {', '.join(header)}")
    return header, lines


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(f"{where}: expected a number, not {text!r}")
    return value
