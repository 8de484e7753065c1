"""Columns that files of a site and sites of a run must share, and what differs is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsuite
from fedsuite.core.errors import DataError
from fedsuite.data import DATASETS
from fedsuite.data.columns import difference, fingerprint
from fedsuite.data.site import Site, SiteData
from fedsuite.data.site_parquet import read_site
from tests.data.site_files import write

TABLE = replace(DATASETS["own-table"], input_shape=(3,), num_classes=2)
LABELS = [0, 1] * 10


def columns(**numbers: Any) -> dict[str, Any]:
    return {**numbers, "label": LABELS}


def number(value: float) -> Any:
    return np.arange(20) % 2 + value


def read(folder: Path, **options: Any) -> SiteData:
    return read_site(Site("north", folder, **options), TABLE, 0.2)


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


FIRST = columns(age=number(40), bp=number(120), chol=number(200))


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (
            columns(age=number(40), chol=number(200), weight=number(70)),
            "x2.parquet lacks 'bp' and has 'weight': give all files the same",
        ),
        (columns(age=number(40), bp=number(120)), "x2.parquet lacks 'chol': give"),
        (FIRST | {"zinc": number(1)}, "x2.parquet has 'zinc': give"),
        (FIRST | {"Age": number(40)}, "x2.parquet has 'Age': give"),
        # No number, and so no column of the table.
        (FIRST | {"bp": ["high"] * 20}, "x2.parquet lacks 'bp': give"),
    ],
)
@pytest.mark.parametrize("names", [("x1", "x2"), ("train-x1", "test-x2")])
def test_files_of_other_columns_are_refused_with_the_difference(
    second: dict[str, Any], reason: str, names: tuple[str, str], tmp_path: Path
) -> None:
    for name, held in zip(names, (FIRST, second), strict=True):
        write(tmp_path / f"{name}.parquet", held)
    message = refused(tmp_path)
    assert f"{names[1]}.parquet and {names[0]}.parquet have other columns: " in message
    assert reason in message


def test_lists_of_another_length_are_other_columns(tmp_path: Path) -> None:
    one, two = number(1), np.stack([number(1), number(2)], 1).tolist()
    write(tmp_path / "x1.parquet", columns(a=one, b=two))
    write(tmp_path / "x2.parquet", columns(a=two, b=one))
    assert "x2.parquet lacks 'a', 'b[2]' and has 'a[2]', 'b'" in refused(tmp_path)


def test_order_in_the_file_and_kinds_of_number_are_no_difference(tmp_path: Path) -> None:
    write(tmp_path / "x1.parquet", FIRST)
    turned = dict(reversed(FIRST.items()))
    write(tmp_path / "x2.parquet", turned | {"age": number(40).astype(float)})
    data = read(tmp_path)
    assert data.columns == ("age", "bp", "chol")
    assert set(np.round(data.train.features[:, 1].numpy(), -1)) == {120}


def test_a_file_without_rows_must_have_the_columns_too(tmp_path: Path) -> None:
    write(tmp_path / "x1.parquet", {name: held[:0] for name, held in FIRST.items()})
    other = columns(age=number(40), chol=number(200), weight=number(70))
    write(tmp_path / "x2.parquet", other)
    assert "lacks 'bp' and has 'weight'" in refused(tmp_path)


def test_named_columns_may_stand_beside_any_others(tmp_path: Path) -> None:
    write(tmp_path / "x1.parquet", FIRST)
    write(tmp_path / "x2.parquet", FIRST | {"zinc": number(1)})
    assert read(tmp_path, feature_columns=("chol", "age", "bp")).columns == (
        "chol",
        "age",
        "bp",
    )


def test_differences_in_words() -> None:
    assert difference(("a", "b"), ("a", "b")) == difference((), ("a",)) == ""
    assert difference(("a",), ()) == ""
    assert difference(("b", "a"), ("a", "b")) == "has them in the order 'b', 'a'"
    many = [f"c{k}" for k in range(7)]
    said = difference(("a",), ("a", *many))
    assert said == "lacks 'c0', 'c1', 'c2', 'c3', 'c4' and 2 more"
    assert difference(("a", *many[:5]), ("a",)).endswith("'c3', 'c4'")


def test_a_fingerprint_tells_names_and_order_apart() -> None:
    found = [("a", "b"), ("b", "a"), ("a,b",), ("a", "b[2]"), ("a", "b", ""), ("ab",)]
    assert len({fingerprint(names) for names in found}) == len(found)
    assert fingerprint(["a", "b"]) == fingerprint(("a", "b"))


RUN: dict[str, Any] = {
    "dataset": "own-table",
    "table-columns": 3,
    "model": "linear",
    "sites": "a, b",
    "num-rounds": 1,
    "report": False,
}


def rehearse(folder: Path, second: dict[str, Any], site_file: str = "") -> Any:
    write(folder / "sites" / "a" / "rows.parquet", FIRST)
    write(folder / "sites" / "b" / "rows.parquet", second)
    (folder / "sites" / "b" / "site.toml").write_text(site_file)
    keys = {"site-dirs": str(folder / "sites"), "output-dir": str(folder)}
    return fedsuite.run(RUN | keys)


def test_sites_of_other_columns_are_refused_in_a_rehearsal(tmp_path: Path) -> None:
    other = columns(age=number(40), chol=number(200), weight=number(70))
    with pytest.raises(
        DataError, match=r"^sites a and b have other columns: b lacks 'bp' and has 'weight'"
    ):
        rehearse(tmp_path, other)


def test_sites_of_another_order_are_refused(tmp_path: Path) -> None:
    order = "feature-columns = 'chol, age, bp'"
    with pytest.raises(DataError, match=r"b has them in the order 'chol', 'age', 'bp'"):
        rehearse(tmp_path, FIRST, order)


def test_sites_of_the_same_columns_run(tmp_path: Path) -> None:
    turned = dict(reversed(FIRST.items()))
    assert rehearse(tmp_path, turned | {"age": number(40.5)}).manifest["status"] == (
        "finished"
    )
