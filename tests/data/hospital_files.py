"""Small tables in the form of the two hospital data sets."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedsuite.data import diabetes130, heart_disease

HEART_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang"),
    *("oldpeak", "slope", "ca", "thal", "num"),
)
HEART_ROW = ("63", "1", "1", "145", "233", "1", "2", "150", "0", "2.3", "3", "0", "6", "0")
"""The first patient of Cleveland."""


def heart_row(**changes: object) -> list[str]:
    """Return a patient; ``changes`` replace cells of Cleveland's first."""
    row = dict(zip(HEART_COLUMNS, HEART_ROW, strict=True))
    return [str(cell) for cell in (row | changes).values()]


def write_heart(
    root: Path, hospital: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()
) -> Path:
    """Write one hospital's file, and return it."""
    folder = root / "heart_disease"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{hospital}.csv"
    with open(file, "w", newline="") as opened:
        csv.writer(opened).writerows([header or HEART_COLUMNS, *rows])
    return file


def write_hearts(root: Path, sizes: Sequence[int] = (20, 15, 10, 12)) -> None:
    """Write all four hospitals; the ill are older, every third patient is ill."""
    rng = np.random.default_rng(0)
    for hospital, size in zip(heart_disease.HOSPITALS, sizes, strict=True):
        rows = [
            heart_row(
                age=int(50 + 15 * (k % 3 == 0) + rng.integers(-5, 6)),
                chol="" if k % 4 == 1 else int(rng.integers(150, 300)),
                cp=1 + k % 4,
                thal="?" if k % 5 == 2 else 3,
                num=int(k % 3 == 0),
            )
            for k in range(size)
        ]
        write_heart(root, hospital, rows)


ENCOUNTER = {
    **{"encounter_id": "1", "patient_nbr": "1", "race": "Caucasian", "gender": "Female"},
    **{"age": "[70-80)", "weight": "?", "admission_type_id": "1"},
    **{"discharge_disposition_id": "1", "admission_source_id": "7"},
    **{"payer_code": "MC", "medical_specialty": "Cardiology"},
    **dict.fromkeys((*diabetes130.NUMBERS, *diabetes130.VISITS), "2"),
    **{"diag_1": "428", "diag_2": "250.83", "diag_3": "V27"},
    **{
        "max_glu_serum": "None",
        "A1Cresult": ">8",
        **dict.fromkeys(diabetes130.DRUGS, "No"),
    },
    **{"change": "No", "diabetesMed": "Yes", "readmitted": "NO"},
}


def encounter(**changes: object) -> dict[str, str]:
    """Return a row of the table; a name with a dash is written with an underscore."""
    return ENCOUNTER | {name: str(value) for name, value in changes.items()}


def write_diabetes(
    root: Path, rows: Sequence[Mapping[str, str]], name: str = "diabetic_data.parquet"
) -> Path:
    """Write the table as the real file has it: whole numbers where all cells are some."""
    folder = root / "diabetes130"
    folder.mkdir(parents=True, exist_ok=True)
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    table = pa.table({key: _typed(cells) for key, cells in columns.items()})
    if name.endswith(".csv"):
        pyarrow.csv.write_csv(table, folder / name)
    else:
        pyarrow.parquet.write_table(table, folder / name)
    return folder / name


def _typed(cells: list[str]) -> pa.Array:
    if all(cell.isdigit() for cell in cells):
        return pa.array([int(cell) for cell in cells])
    return pa.array(cells)


def write_encounters(root: Path, patients: int = 60) -> None:
    """Write patients of three specialties; some come twice, to two of them."""
    names = ("Cardiology", "Nephrology", "Urology")
    rows = []
    for patient in range(patients):
        for visit in range(1 + (patient % 4 == 0)):
            rows.append(
                encounter(
                    encounter_id=len(rows),
                    patient_nbr=1000 + patient,
                    medical_specialty=names[(patient + visit) % 3],
                    number_inpatient=3 * (patient % 2),
                    readmitted=("NO", "<30", ">30")[patient % 2 * (1 + patient % 3 // 2)],
                )
            )
    write_diabetes(root, rows)
