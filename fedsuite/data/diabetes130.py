"""Real records of diabetics at 130 US hospitals, 1999 to 2008.

B. Strack et al., "Impact of HbA1c Measurement on Hospital Readmission Rates", BioMed
Research International 2014, 781670; J. Clore, K. Cios, J. DeShazo, B. Strack, UCI Machine
Learning Repository. The task is whether a patient is readmitted.

The table names no hospital. Clients are the medical specialties of the admitting physician,
or the payers (key ``diabetes-clients``). Rows of unknown specialty (49 %) or payer (40 %)
have no client and are left out.

A patient may have several encounters. All are in one part: test patients are drawn, not
test rows. They may lie with several clients, as a patient sees several specialists.

Left out are the ids of encounter and patient, the weight (97 % missing), the two columns
that name clients, and encounters that end with death or in a hospice, after which nobody is
readmitted.

Nine columns are numbers. Age is the middle of its decade. The three counts of earlier
visits enter as ``log(1 + count)``. The other columns are 0 or 1, one per value of a fixed
code book. Diagnoses are grouped as by Strack et al. (their Table 2). An unknown value is 0
in all its columns.
"""

from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fedsuite.core.errors import DataError, one_line
from fedsuite.core.reading import check_regular
from fedsuite.core.settings import key
from fedsuite.data.folders import dataset_folder
from fedsuite.data.owners import shown_names
from fedsuite.data.specs import DatasetSpec, IntArray, RawData, Source
from fedsuite.data.table_files import read_table, unreadable
from fedsuite.data.tabular import Floats, one_hot, standardised

FILES = ("diabetic_data.parquet", "diabetic_data.csv")
"""Names of the table's file; the first file that exists is read."""

AGE = "age"
NUMBERS = (
    "time_in_hospital",
    "num_lab_procedures",
    "num_procedures",
    "num_medications",
    "number_diagnoses",
)
VISITS = ("number_outpatient", "number_emergency", "number_inpatient")
DIAGNOSES = ("diag_1", "diag_2", "diag_3")
DISEASES = {
    "circulatory": ((390, 460), (785, 786)),
    "respiratory": ((460, 520), (786, 787)),
    "digestive": ((520, 580), (787, 788)),
    "diabetes": ((250, 251),),
    "injury": ((800, 1000),),
    "musculoskeletal": ((710, 740),),
    "genitourinary": ((580, 630), (788, 789)),
    "neoplasms": ((140, 240),),
}
"""Ranges of ICD-9 codes, without their ends; all other codes are one more group."""

DIED_OR_HOSPICE = ("11", "13", "14", "19", "20", "21")
DRUGS = (
    *("metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride"),
    *("acetohexamide", "glipizide", "glyburide", "tolbutamide", "pioglitazone"),
    *("rosiglitazone", "acarbose", "miglitol", "troglitazone", "tolazamide", "examide"),
    *("citoglipton", "insulin", "glyburide-metformin", "glipizide-metformin"),
    *("glimepiride-pioglitazone", "metformin-rosiglitazone", "metformin-pioglitazone"),
)
CODES: dict[str, tuple[str, ...]] = {
    "race": ("Caucasian", "AfricanAmerican", "Hispanic", "Other", "Asian"),
    "gender": ("Female", "Male"),
    "admission_type_id": ("1", "2", "3", "4", "7"),
    "discharge_disposition_id": tuple(
        str(n) for n in range(1, 31) if str(n) not in (*DIED_OR_HOSPICE, "18", "25", "26")
    ),
    "admission_source_id": tuple(
        str(n) for n in range(1, 27) if n not in (9, 15, 16, 17, 20, 21)
    ),
    "max_glu_serum": ("None", "Norm", ">200", ">300"),
    "A1Cresult": ("None", "Norm", ">7", ">8"),
    **dict.fromkeys(DRUGS, ("Steady", "Up", "Down")),
    "change": ("Ch",),
    "diabetesMed": ("Yes",),
}
"""Values of each column of codes, without values that mean "unknown" or "nothing"."""

OWNERS = {"specialty": "medical_specialty", "payer": "payer_code"}
TARGETS = {"NO": 0, ">30": 1, "<30": 2}
UNKNOWN = "?"
WIDTH = sum(map(len, (NUMBERS, VISITS, *CODES.values())), 1) + (len(DISEASES) + 1) * len(
    DIAGNOSES
)

ArrowTable: TypeAlias = Any  # pyarrow ships no types


class Diabetes130(Source):
    """The table of encounters."""

    diabetes_clients: Literal["specialty", "payer", "none"] = key(
        default="specialty",
        help="owner of a row: medical specialty, payer, or none, which keeps all rows",
    )
    diabetes_target: Literal["any", "30-days"] = key(
        default="any",
        help="what is predicted: any readmission, or one within 30 days",
    )

    @override
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        import pyarrow.compute as pc

        file = _find(spec, dataset_folder(spec, data_dir))
        table = _read(file)
        ended = _strings(DIED_OR_HOSPICE)
        died = pc.is_in(table["discharge_disposition_id"], value_set=ended)
        table = table.filter(pc.invert(died))
        owner = OWNERS.get(self.diabetes_clients)
        if owner is not None:
            table = table.filter(pc.not_equal(table[owner], UNKNOWN))
        if not table.num_rows:
            raise DataError(
                f"{file}: no row is left: all have died, or their owner is unknown"
            )
        outcome = _index(table["readmitted"], tuple(TARGETS))
        if (outcome < 0).any():
            wrong = table["readmitted"][int((outcome < 0).argmax())].as_py()
            expected = ", ".join(TARGETS)
            raise DataError(f"{file}, readmitted: {wrong!r} is none of {expected}")
        least = 1 if self.diabetes_target == "any" else TARGETS["<30"]
        ids, names = (None, ()) if owner is None else _numbered(table[owner])
        return RawData(
            features=_encode(file, table),
            labels=(outcome >= least).astype(np.int64),
            ids=ids,
            groups=_numbered(table["patient_nbr"])[0],
            owner_names=names,
        )

    @override
    def prepare(self, raw: RawData, train_rows: IntArray) -> RawData:
        return standardised(raw, train_rows, 1 + len(NUMBERS) + len(VISITS))


def disease_group(code: str) -> int:
    """Return the index in :data:`DISEASES` of an ICD-9 code's group.

    Codes without a group there (also ``E`` and ``V`` codes) form one more group, the last.
    An unknown code is -1.
    """
    if code == UNKNOWN:
        return -1
    try:
        number = float(code)
    except ValueError:
        return len(DISEASES)
    for group, ranges in enumerate(DISEASES.values()):
        if any(first <= number < end for first, end in ranges):
            return group
    return len(DISEASES)


def _find(spec: DatasetSpec, folder: Path) -> Path:
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"data set {spec.name}: no {' or '.join(FILES)} in {folder}")


def _read(file: Path) -> ArrowTable:
    """Return the used columns as strings."""
    import pyarrow as pa
    import pyarrow.csv

    try:
        if file.suffix == ".csv":
            check_regular(file)
            # Strings also for columns of numbers, so that ? and None stay as they are.
            table = pyarrow.csv.read_csv(
                file, convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=False)
            )
            # Names of another encoding raise here.
            table.column_names  # noqa: B018
        else:
            table = read_table(file)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise unreadable(file, error) from error
    names = [
        *("patient_nbr", "readmitted", AGE),
        *(*OWNERS.values(), *NUMBERS, *VISITS, *DIAGNOSES, *CODES),
    ]
    for name in names:
        if name not in table.column_names:
            raise DataError(f"{file}: no column {name!r}")
        if table.column_names.count(name) > 1:
            raise DataError(f"{file}: column {name!r} is there twice: rename one")
    table = table.select(names)
    for name in names:
        if table[name].null_count:
            raise DataError(
                f"{file}: column {name!r} has {table[name].null_count} empty cells"
            )
    text = pa.schema([(name, pa.string()) for name in names])
    try:
        return table.cast(text).combine_chunks()
    except pa.ArrowException as error:
        raise unreadable(file, error) from error


def _encode(file: Path, table: ArrowTable) -> Floats:
    numbers = [
        _ages(file, table),
        *(_numbers(file, table, name) for name in NUMBERS),
        *(np.log1p(_numbers(file, table, name)) for name in VISITS),
    ]
    return np.concatenate(
        [
            np.stack(numbers, axis=1),
            *(_diseases(table[name]) for name in DIAGNOSES),
            *(one_hot(_index(table[name], v), len(v)) for name, v in CODES.items()),
        ],
        axis=1,
    )


def _numbers(file: Path, table: ArrowTable, name: str) -> Floats:
    import pyarrow as pa

    try:
        column = table[name].cast(pa.float32())
    except pa.ArrowException as error:
        reason = f"not all are numbers ({one_line(error)})"
        raise DataError(f"{file}, {name}: {reason}") from error
    return np.asarray(column.to_numpy())


def _ages(file: Path, table: ArrowTable) -> Floats:
    """Return the middle of each decade, ``[70-80)`` for instance."""
    decades = tuple(f"[{10 * n}-{10 * n + 10})" for n in range(10))
    positions = _index(table[AGE], decades)
    if (positions < 0).any():
        wrong = table[AGE][int((positions < 0).argmax())].as_py()
        raise DataError(f"{file}, age: {wrong!r} is no decade such as [70-80)")
    return (10 * positions + 5).astype(np.float32)


def _diseases(column: ArrowTable) -> Floats:
    codes = column.combine_chunks().dictionary_encode()
    groups = np.array([disease_group(code) for code in codes.dictionary.to_pylist()])
    return one_hot(groups[codes.indices.to_numpy()], len(DISEASES) + 1)


def _index(column: ArrowTable, values: tuple[str, ...]) -> IntArray:
    """Return the index of each cell among the values, -1 for any other cell."""
    import pyarrow.compute as pc

    indices = pc.fill_null(pc.index_in(column, value_set=_strings(values)), -1)
    return np.asarray(indices.to_numpy(), np.int64)


def _numbered(column: ArrowTable) -> tuple[IntArray, tuple[str, ...]]:
    """Return each cell's index among the column's sorted values, and these as names."""
    codes = column.combine_chunks().dictionary_encode()
    names: npt.NDArray[Any] = np.array(codes.dictionary.to_pylist())
    rank = np.argsort(np.argsort(names))
    ids = np.asarray(rank[codes.indices.to_numpy()], np.int64)
    return ids, shown_names(np.sort(names).tolist())


def _strings(values: tuple[str, ...]) -> ArrowTable:
    import pyarrow as pa

    return pa.array(values, pa.string())
