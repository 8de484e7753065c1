"""130 hospitals: columns by hand, patients on one side, and tables that are refused."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedsuite.core.errors import DataError
from fedsuite.data import DATASETS, RawData, diabetes130, load_federated_data
from fedsuite.data.diabetes130 import (
    CODES,
    DIAGNOSES,
    DISEASES,
    NUMBERS,
    VISITS,
    WIDTH,
    Diabetes130,
)
from fedsuite.data.splits import split_rows

from . import hospital_files as files
from .hospital_files import encounter

SPEC = DATASETS["diabetes130"]
COLUMNS = [
    *("age", *NUMBERS, *VISITS),
    *(f"{name}={group}" for name in DIAGNOSES for group in (*DISEASES, "other")),
    *(f"{name}={value}" for name, values in CODES.items() for value in values),
]


def load(root: Path, clients: str = "specialty", target: str = "any") -> RawData:
    source = Diabetes130(diabetes_clients=clients, diabetes_target=target)
    return source.load(SPEC, root)


def rows_of(root: Path, *rows: Mapping[str, str], **options: str) -> list[dict[str, float]]:
    files.write_diabetes(root, rows)
    found = load(root, **options).features
    return [dict(zip(COLUMNS, row.tolist(), strict=True)) for row in found]


def test_columns_of_an_encounter_by_hand(tmp_path: Path) -> None:
    row = encounter(insulin="Up", number_inpatient=3, num_medications=17)
    found = rows_of(tmp_path, row)[0]
    assert len(COLUMNS) == WIDTH
    numbers = dict.fromkeys(NUMBERS, 2.0) | {"num_medications": 17, "age": 75}
    logs = dict.fromkeys(VISITS, pytest.approx(np.log(3.0)))
    logs["number_inpatient"] = pytest.approx(np.log(4.0))
    assert {n: found[n] for n in ("age", *NUMBERS, *VISITS)} == numbers | logs
    ones = {name for name in COLUMNS if "=" in name and found[name]}
    assert ones == {
        *("diag_1=circulatory", "diag_2=diabetes", "diag_3=other"),
        *("race=Caucasian", "gender=Female", "admission_type_id=1"),
        *("discharge_disposition_id=1", "admission_source_id=7"),
        *("max_glu_serum=None", "A1Cresult=>8", "insulin=Up", "diabetesMed=Yes"),
    }


@pytest.mark.parametrize(
    ("code", "group"),
    [
        ("390", "circulatory"),
        ("459.9", "circulatory"),
        ("785", "circulatory"),
        ("460", "respiratory"),
        ("786.5", "respiratory"),
        ("520", "digestive"),
        ("787", "digestive"),
        ("250", "diabetes"),
        ("250.83", "diabetes"),
        ("249.9", "other"),
        ("251", "other"),
        ("800", "injury"),
        ("999", "injury"),
        ("710", "musculoskeletal"),
        ("580", "genitourinary"),
        ("788", "genitourinary"),
        ("140", "neoplasms"),
        ("239", "neoplasms"),
        ("240", "other"),
        ("V45", "other"),
        ("E812", "other"),
    ],
)
def test_groups_of_diagnoses(code: str, group: str) -> None:
    assert [*DISEASES, "other"][diabetes130.disease_group(code)] == group


def test_unknown_values_are_no_values(tmp_path: Path) -> None:
    row = encounter(race="?", gender="Unknown/Invalid", diag_2="?", admission_type_id=6)
    found = rows_of(tmp_path, row)[0]
    starts = ("race=", "gender=", "diag_2=", "admission_type_id=")
    assert not any(found[name] for name in COLUMNS if name.startswith(starts))


def test_neither_ids_nor_owners_nor_the_answer_are_columns(tmp_path: Path) -> None:
    one = encounter()
    two = encounter(
        encounter_id=9, patient_nbr=7, weight="[75-100)", payer_code="HM", readmitted="<30"
    )
    three = encounter(medical_specialty="Urology")
    found = rows_of(tmp_path, one, two, three)
    assert found[0] == found[1] == found[2]
    assert load(tmp_path).labels.tolist() == [0, 1, 0]


def test_targets(tmp_path: Path) -> None:
    rows = [encounter(readmitted=value) for value in ("NO", ">30", "<30")]
    files.write_diabetes(tmp_path, rows)
    assert load(tmp_path).labels.tolist() == [0, 1, 1]
    assert load(tmp_path, target="30-days").labels.tolist() == [0, 0, 1]


def test_the_dead_are_left_out(tmp_path: Path) -> None:
    """11, 13, 14, 19, 20, 21 are death and hospice; 3 is a nursing home."""
    ends = (1, 11, 13, 14, 19, 20, 21, 3)
    rows = [encounter(discharge_disposition_id=end, patient_nbr=end) for end in ends]
    files.write_diabetes(tmp_path, rows)
    found = load(tmp_path)
    assert len(found.labels) == 2
    assert not any("disposition_id=11" in name for name in COLUMNS)


def test_owners(tmp_path: Path) -> None:
    rows = [
        encounter(medical_specialty=specialty, payer_code=payer)
        for specialty, payer in (("B", "x"), ("?", "y"), ("A", "?"), ("B", "x"))
    ]
    files.write_diabetes(tmp_path, rows)
    specialty, payer, none = (load(tmp_path, c) for c in ("specialty", "payer", "none"))
    assert specialty.ids is not None and specialty.ids.tolist() == [1, 0, 1]
    assert payer.ids is not None and payer.ids.tolist() == [0, 1, 0]
    assert none.ids is None and len(none.labels) == 4


def test_a_patient_is_on_one_side(tmp_path: Path) -> None:
    files.write_encounters(tmp_path)
    raw = load(tmp_path)
    assert raw.groups is not None and raw.ids is not None
    train, test = split_rows(raw, 0.2)
    assert not set(raw.groups[train]) & set(raw.groups[test])
    assert len(train) + len(test) == 75
    owners = [set(raw.ids[raw.groups == patient]) for patient in np.unique(raw.groups)]
    assert max(map(len, owners)) == 2  # though not always at one client


@pytest.mark.parametrize("name", diabetes130.FILES)
def test_clients_are_specialties(name: str, tmp_path: Path) -> None:
    files.write_encounters(tmp_path)
    if name.endswith(".csv"):
        parquet = tmp_path / "diabetes130" / diabetes130.FILES[0]
        table = pa.parquet.read_table(parquet)
        pa.csv.write_csv(table, parquet.with_name(name))
        parquet.unlink()
    data = load_federated_data(experiment(tmp_path), 0)
    assert data.input_shape == (WIDTH,)
    assert (data.class_counts() > 0).all() and (data.test_class_counts() > 0).all()
    assert data.description["unused-train-rows"] == 0
    train = np.concatenate([data.client(k).train.features.numpy() for k in range(3)])
    inpatient = COLUMNS.index("number_inpatient")
    assert train[:, inpatient].mean() == pytest.approx(0, abs=1e-5)
    assert train[:, inpatient].std() == pytest.approx(1, abs=1e-4)


def experiment(root: Path, **changes: Any) -> dict[str, Any]:
    values = {
        "dataset": "diabetes130",
        "data-dir": str(root),
        "partitioner": "natural-id",
        "natural-ids": "largest",
        "num-clients": 3,
    }
    return values | {name.replace("_", "-"): value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"readmitted": "maybe"}, "readmitted: 'maybe' is none of NO, >30, <30"),
        ({"age": "77"}, "age: '77' is no decade such as [70-80)"),
        ({"num_procedures": "many"}, "num_procedures: not all are numbers ("),
    ],
)
def test_bad_cells_are_named(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    files.write_diabetes(tmp_path, [encounter(), encounter(**changes)])
    with pytest.raises(DataError, match=re.escape(message)) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_bad_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*diabetes130, and no hub has it"):
        load(tmp_path)
    file = files.write_diabetes(tmp_path, [encounter()])
    table = pa.parquet.read_table(file).drop_columns(["insulin"])
    pa.parquet.write_table(table, file)
    with pytest.raises(DataError, match=r"diabetic_data\.parquet: no column 'insulin'"):
        load(tmp_path)
    table = table.append_column("insulin", pa.array([None], pa.string()))
    pa.parquet.write_table(table, file)
    with pytest.raises(DataError, match="column 'insulin' has 1 empty cells"):
        load(tmp_path)
    files.write_diabetes(tmp_path, [encounter(medical_specialty="?")])
    with pytest.raises(DataError, match="no row is left"):
        load(tmp_path)
    file.write_bytes(b"no table")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"no diabetic_data\.parquet or diabetic_data"):
        load(tmp_path)
