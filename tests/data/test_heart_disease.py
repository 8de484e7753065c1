"""Four hospitals: columns by hand, what is missing, and files that are refused."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedsuite.core.errors import DataError
from fedsuite.data import DATASETS, RawData, heart_disease, load_federated_data
from fedsuite.data.heart_disease import CODES, HOSPITALS, INDICATED, NUMBERS, WIDTH

from . import hospital_files as files

SPEC = DATASETS["heart-disease"]
CODE_COLUMNS = [f"{name}={value}" for name, values in CODES.items() for value in values]
COLUMNS = [*NUMBERS, *CODE_COLUMNS, *(f"no {name}" for name in INDICATED)]


def load(root: Path) -> RawData:
    return SPEC.source().load(SPEC, root)


def first_row(root: Path, **changes: object) -> dict[str, float]:
    """Return the columns of one patient before scaling, by name."""
    files.write_hearts(root)
    files.write_heart(root, "cleveland", [files.heart_row(**changes)])
    return dict(zip(COLUMNS, load(root).features[0].tolist(), strict=True))


def test_columns_of_a_patient_by_hand(tmp_path: Path) -> None:
    found = first_row(tmp_path)
    assert len(COLUMNS) == WIDTH == 32
    numbers = {"age": 63, "sex": 1, "trestbps": 145, "chol": 233, "fbs": 1, "thalach": 150}
    numbers |= {"exang": 0, "oldpeak": pytest.approx(2.3), "ca": 0}
    assert {name: found[name] for name in NUMBERS} == numbers
    ones = {name for name in COLUMNS[len(NUMBERS) :] if found[name]}
    assert ones == {"cp=1", "restecg=2", "slope=3", "thal=6"}


@pytest.mark.parametrize("mark", ["", "?", "-9", " ? "])
@pytest.mark.parametrize("column", INDICATED)
def test_missing_values_are_indicated(column: str, mark: str, tmp_path: Path) -> None:
    whole, found = first_row(tmp_path), first_row(tmp_path, **{column: mark})
    assert found[f"no {column}"] == 1 and whole[f"no {column}"] == 0
    if column in NUMBERS:
        assert np.isnan(found[column])
    else:
        assert not any(found[name] for name in COLUMNS if name.startswith(f"{column}="))
    touched = {name for name in COLUMNS if name.partition("=")[0] == column}
    others = set(COLUMNS) - touched - {f"no {column}"}
    assert all(found[name] == whole[name] for name in others)


@pytest.mark.parametrize(("column", "value"), [("chol", 0), ("trestbps", "0.0"), ("ca", 9)])
def test_what_cannot_be_is_missing(column: str, value: object, tmp_path: Path) -> None:
    found = first_row(tmp_path, **{column: value})
    assert found[f"no {column}"] == 1 and np.isnan(found[column])


def test_zero_is_a_value_elsewhere(tmp_path: Path) -> None:
    found = first_row(tmp_path, oldpeak=0, fbs=0, restecg=0)
    assert found["no oldpeak"] == found["no fbs"] == found["no restecg"] == 0
    assert found["restecg=0"] == 1


@pytest.mark.parametrize(("grade", "label"), [("0", 0), ("1", 1), ("4", 1)])
def test_any_grade_is_ill(grade: str, label: int, tmp_path: Path) -> None:
    first_row(tmp_path, num=grade)
    assert load(tmp_path).labels[0] == label


def test_each_hospital_is_a_client(tmp_path: Path) -> None:
    files.write_hearts(tmp_path, (20, 15, 10, 12))
    values = {
        "dataset": "heart-disease",
        "data-dir": str(tmp_path),
        "partitioner": "natural-id",
        "natural-ids": "largest",
        "num-clients": 4,
    }
    data = load_federated_data(values, 0)
    raw = load(tmp_path)
    assert raw.ids is not None and np.bincount(raw.ids).tolist() == [20, 15, 10, 12]
    # Healthy and ill; the V.A. is larger than Switzerland.
    assert data.class_counts().tolist() == [[10, 6], [8, 4], [6, 3], [5, 3]]
    assert data.test_class_counts().tolist() == [[3, 1], [2, 1], [2, 1], [1, 1]]
    train = np.concatenate([data.client(k).train.features.numpy() for k in range(4)])
    assert np.isfinite(train).all()
    assert train[:, 0].mean() == pytest.approx(0, abs=1e-5)
    assert train[:, 0].std() == pytest.approx(1, abs=1e-4)
    # Codes and indicators stay 0 and 1.
    assert set(np.unique(train[:, len(NUMBERS) :])) == {0.0, 1.0}
    # Hospitals keep what sets them apart: they are not scaled one by one.
    means = [data.client(k).train.features[:, 0].mean().item() for k in range(4)]
    assert max(map(abs, means)) > 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": "old"}, "cleveland.csv, row 1, age: expected a number or nothing"),
        ({"chol": "inf"}, "row 1, chol: expected a number or nothing, not 'inf'"),
        ({"age": ""}, "row 1, age: must not be missing"),
        ({"num": "?"}, "row 1, num: must not be missing"),
        ({"cp": 5}, "row 1, cp: 5 is none of 1, 2, 3, 4"),
        ({"thal": 4}, "row 1, thal: 4 is none of 3, 6, 7"),
    ],
)
def test_bad_cells_are_named(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    files.write_hearts(tmp_path)
    rows = [files.heart_row(), files.heart_row(**changes)]
    files.write_heart(tmp_path, "cleveland", rows)
    with pytest.raises(DataError, match=re.escape(message)):
        load(tmp_path)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*heart_disease, and no hub has it"):
        load(tmp_path)
    files.write_hearts(tmp_path)
    header = files.HEART_COLUMNS[:-1]
    file = files.write_heart(tmp_path, "va", [files.heart_row()[:-1]], header)
    with pytest.raises(DataError, match=r"va\.csv: no column 'num'; it has age, sex"):
        load(tmp_path)
    files.write_heart(tmp_path, "va", [])
    with pytest.raises(DataError, match=r"va\.csv: holds no rows"):
        load(tmp_path)
    file.write_bytes(b"age,sex\n\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"va\.csv: not a readable CSV file"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"no file .*va\.csv; its folder should hold cleve"):
        load(tmp_path)


def test_short_row_is_missing_cells(tmp_path: Path) -> None:
    files.write_hearts(tmp_path)
    files.write_heart(tmp_path, "va", [files.heart_row()[:5]])
    with pytest.raises(DataError, match=r"va\.csv, row 0, num: must not be missing"):
        load(tmp_path)


def test_hospitals_are_in_the_order_of_the_files() -> None:
    assert HOSPITALS == ("cleveland", "hungarian", "switzerland", "va")
    assert SPEC.file_patterns == heart_disease.FILES


def test_a_new_hospital_has_no_part_in_the_scaling(tmp_path: Path) -> None:
    """The others' training rows have mean 0; with all four hospitals they have not."""
    files.write_hearts(tmp_path)
    rows = [files.heart_row(age=90, chol=500 + k, num=k % 2) for k in range(12)]
    files.write_heart(tmp_path, "va", rows)
    keys = {"dataset": "heart-disease", "data-dir": str(tmp_path), "num-clients": 4}
    keys |= {"partitioner": "natural-id", "natural-ids": "each"}
    means = {}
    for named in ("", "va"):
        data = load_federated_data({**keys, "evaluation-only": named}, seed=0)
        assert data.client_names == HOSPITALS
        others = [data.client(k).train.features.numpy()[:, 0] for k in range(3)]
        means[named] = float(np.concatenate(others).astype(float).mean())
    assert means["va"] == pytest.approx(0.0, abs=1e-6)
    assert means[""] < -0.1
