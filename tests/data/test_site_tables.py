"""Sites' tables by a schema: files of all kinds, and all faults at once."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.keys import Value
from fedsuite.data.catalog import DATASETS
from fedsuite.data.federated import ClientData
from fedsuite.data.schema import TableSchema
from fedsuite.data.site import Site, site_from_config
from fedsuite.data.site_federation import check_site
from fedsuite.data.site_loading import load_site_rows
from fedsuite.data.site_parquet import read_files
from fedsuite.data.site_statistics import (
    _of_column,
    federated_spec,
    site_statistics,
    statistics_lines,
)
from fedsuite.data.specs import DatasetSpec
from fedsuite.data.table_at_home import at_home
from fedsuite.data.table_files import read_table, rows_at_once

SCHEMA = TableSchema(
    ("age", "sex", "bp"), "died", ("no", "yes"), categories={"sex": ("01", "02")}
)
NUMBER = 40
FRAME = pd.DataFrame(
    {
        "died": ["no", "yes"] * (NUMBER // 2),
        "bp": np.linspace(90.5, 160.25, NUMBER),
        "note": ["a, b"] * NUMBER,
        "sex": ["01", "02"] * (NUMBER // 2),
        "age": range(NUMBER),
    }
)


def the_spec(schema: TableSchema = SCHEMA) -> DatasetSpec:
    return federated_spec({"dataset": "own-table", "schema": schema.to_json()})


def read(data: Path, schema: TableSchema = SCHEMA, **options: Any) -> ClientData:
    site = Site("north", data, schema=schema, **options)
    return load_site_rows(site, the_spec(schema), 0.25)


def refused(data: Path, schema: TableSchema = SCHEMA, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(data, schema, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_table_is_the_same_in_every_kind_of_file(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "a.parquet")
    FRAME.to_csv(tmp_path / "b.csv", index=False)
    FRAME.to_csv(
        tmp_path / "c.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig"
    )
    FRAME[sorted(FRAME.columns)].to_csv(tmp_path / "d.tsv", index=False, sep="\t")
    FRAME.astype({"sex": "category"}).to_parquet(tmp_path / "e.parquet")
    first, *others = (read(file) for file in sorted(tmp_path.iterdir()))
    assert first.columns == ("age", "sex=01", "sex=02", "bp")
    assert first.train.labels.unique().tolist() == [0, 1]
    for other in others:
        for one, two in ((first.train, other.train), (first.test, other.test)):
            assert one.features.equal(two.features)
            assert one.labels.equal(two.labels)


def test_a_site_may_have_names_of_its_own(tmp_path: Path) -> None:
    own = {"age": "alter", "sex": "geschlecht", "bp": "blutdruck", "died": "tot"}
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    wanted = read(tmp_path / "a.csv")
    FRAME.rename(columns=own).to_csv(tmp_path / "b.csv", index=False)
    names = ("alter", "geschlecht", "blutdruck")
    found = read(tmp_path / "b.csv", feature_columns=names, label_column="tot")
    assert found.train.features.equal(wanted.train.features)
    assert found.columns == wanted.columns
    message = refused(tmp_path / "b.csv", feature_columns=names[:2])
    assert "feature-columns names 2 columns, and the schema 3" in message


def test_two_files_of_a_site_go_by_name_and_not_by_place(tmp_path: Path) -> None:
    FRAME[:20].to_csv(tmp_path / "x1.csv", index=False)
    FRAME[20:][sorted(FRAME.columns)].to_parquet(tmp_path / "x2.parquet")
    rows = read(tmp_path)
    every = np.concatenate([rows.train.features.numpy(), rows.test.features.numpy()])
    np.testing.assert_array_equal(np.sort(every[:, 0]), np.arange(NUMBER))
    assert every[:, 3].min() > 90
    FRAME[20:].rename(columns={"bp": "weight"}).to_parquet(tmp_path / "x2.parquet")
    message = refused(tmp_path)
    assert "x2.parquet: no column 'bp'; it has died, weight" in message


def test_all_faults_of_a_folder_are_one_answer(tmp_path: Path) -> None:
    broken = FRAME.drop(columns="bp").assign(age="old", died="perhaps")
    broken.to_csv(tmp_path / "a.csv", index=False)
    FRAME.assign(sex="03").to_parquet(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"no parquet")
    (tmp_path / "d.csv").write_bytes("age;größe\n1;2\n".encode("latin-1"))
    message = refused(tmp_path)
    for fault in (
        "a.csv: column 'age' holds string",
        "a.csv: no column 'bp'",
        "a.csv: column 'died' has 'perhaps', and the classes are 'no', 'yes'",
        "b.parquet: column 'sex' has '03'",
        "c.parquet: not a readable Parquet file",
        "d.csv: not a readable CSV in UTF-8 file",
    ):
        assert fault in message
    assert "6 faults: (1) " in message


def test_without_a_schema_all_faults_are_told_too(tmp_path: Path) -> None:
    rows = {"a": [1.0, None], "b": ["x", "y"], "label": [0, 7]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    plain = replace(DATASETS["own-table"], input_shape=(2,))
    site = Site("north", tmp_path, feature_columns=("a", "b"), id_column="who")
    with pytest.raises(DataError) as caught:
        load_site_rows(site, plain, 0.5)
    for fault in (
        "no column 'who'",
        "column 'a' has 1 missing values",
        "column 'b' holds string",
        "label 7 is outside 0 to 1",
    ):
        assert fault in str(caught.value)


def test_what_is_no_number_is_named_where_the_count_does_not_fit(tmp_path: Path) -> None:
    rows = {
        "a": [1.0, 2.0],
        "when": pa.array([1, 2], pa.timestamp("s")),
        "sex": pa.array(["f", "m"]).dictionary_encode(),
        "label": [0, 1],
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    plain = replace(DATASETS["own-table"], input_shape=(2,))
    with pytest.raises(DataError, match=r"not numbers are 'when' .* 'sex' .*choose with"):
        load_site_rows(Site("north", tmp_path), plain, 0.5)
    twice = pa.table([[1.0], [2.0], [0]], names=["a", "a", "label"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'a' is there twice: rename one"):
        load_site_rows(Site("north", tmp_path), plain, 0.5)


def test_a_patients_rows_stay_together(tmp_path: Path) -> None:
    schema = replace(SCHEMA, id_column="patient")
    frame = FRAME.assign(patient=[f"0{k // 4}" for k in range(NUMBER)])
    frame.to_csv(tmp_path / "a.csv", index=False)
    rows = read(tmp_path, schema)
    held = [set((part.features[:, 0] // 4).tolist()) for part in (rows.train, rows.test)]
    assert not held[0] & held[1]
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    assert "no column 'patient', which id-column names" in refused(tmp_path, schema)


def test_a_site_trains_by_no_schema_but_its_own(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    other = replace(SCHEMA, columns=("age", "bp", "sex"))
    for own, message in (
        (None, "the run has a table schema, and the site none: give both the same"),
        (other, "columns: this one has them in the order 'age', 'sex', 'bp'"),
        (replace(SCHEMA, classes=("yes", "no")), 'has ["no", "yes"], the other ["yes"'),
    ):
        with pytest.raises(DataError) as caught:
            load_site_rows(Site("north", tmp_path, schema=own), the_spec(), 0.25)
        assert message in str(caught.value)
    with pytest.raises(DataError, match="the site has a table schema, and the run none"):
        load_site_rows(Site("north", tmp_path, schema=SCHEMA), DATASETS["own-table"], 0.25)


def test_a_nodes_configuration_names_the_schema(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA.to_json())
    config: dict[str, Value] = {"data": "/srv/north", "least-rows": 20}
    site = site_from_config(config | {"schema": str(tmp_path / "schema.json")})
    assert (site.schema, site.least_rows) == (SCHEMA, 20)
    with pytest.raises(ConfigError, match=r"schema = 'schema\.json': expected an"):
        site_from_config(config | {"schema": "schema.json"})
    with pytest.raises(ConfigError, match="least-rows = 0: expected 1 or more"):
        site_from_config(config | {"least-rows": 0})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"schema": "table.toml"}, "the file is read by `fedsuite run`"),
        ({"schema": SCHEMA.to_json(), "columns": "age"}, "both name the columns"),
        ({"columns": "age, age"}, "key columns: column 'age' stands there twice"),
        ({"columns": "age, bp", "table-columns": 3}, "key table-columns = 3: the schema"),
        (
            {"schema": SCHEMA.to_json(), "table-classes": 4},
            "key table-classes = 4: the sch",
        ),
    ],
)
def test_keys_that_say_two_things(keys: dict[str, Value], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federated_spec({"dataset": "own-table", **keys})
    assert message in str(caught.value)


def test_the_file_of_a_schema_travels_as_its_content(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(SCHEMA.to_json())
    values: dict[str, Value] = {"dataset": "own-table", "client-column": ""}
    changed = at_home(values | {"schema": str(path)})
    assert TableSchema.parse(str(changed["schema"])) == SCHEMA
    assert at_home(values | {"schema": SCHEMA.to_json()}) == {}


# Statistics


def test_statistics_tell_of_nobody(tmp_path: Path) -> None:
    frame = pd.concat([FRAME] * 5, ignore_index=True)
    rng = np.random.default_rng(0)
    frame["bp"] = rng.normal(120, 10, len(frame)).round(3)
    frame.loc[:11, "bp"] = np.nan
    frame.loc[12, "bp"] = 999.125
    frame.loc[frame.index[frame.sex == "02"][5:], "sex"] = "01"
    frame.to_csv(tmp_path / "train-a.csv", index=False)
    frame[:40].to_csv(tmp_path / "test-a.csv", index=False)
    site = Site("north", tmp_path, schema=SCHEMA)
    told = site_statistics(site, the_spec(), 0.25)
    assert told["rows"] == 200
    assert told["classes"] == {"no": 100, "yes": 100}
    assert told["columns"]["bp"]["missing"] == 12
    low, high = told["columns"]["bp"]["range"]
    bounds = np.sort(frame["bp"].dropna())[[10, -11]]
    assert low <= bounds[0] < bounds[1] <= high
    assert high < 150, "the largest value is a person's, and is not told"
    assert not np.isclose(frame["bp"].dropna(), high).any()
    assert told["columns"]["sex=02"] == {"rows": "fewer than 10"}
    (line,) = (x for x in statistics_lines({"north": told}) if x.startswith("column bp"))
    assert line.endswith("missing 12")
    strict = site_statistics(replace(site, least_rows=201), the_spec(), 0.25)
    assert strict == {"rows": "fewer than 201", "columns": {}, "classes": {}}


def test_a_range_leaves_out_the_largest_as_the_smallest() -> None:
    """Ten of each, where ten rows are the fewest that are told of."""
    column = np.array([0.0] * 10 + [10.0] * 80 + [20.0] * 10, np.float32)
    assert _of_column(column, 10) == {"missing": 0, "range": [10.0, 10.0]}


def test_a_hidden_class_cannot_be_found_from_the_others(tmp_path: Path) -> None:
    schema = TableSchema(("age",), "grade", num_classes=4)
    grades = [0] * 50 + [1] * 30 + [2] * 20 + [3] * 3
    frame = pd.DataFrame({"age": range(len(grades)), "grade": grades})
    frame.to_csv(tmp_path / "train-a.csv", index=False)
    frame.to_csv(tmp_path / "test-a.csv", index=False)
    site = Site("north", tmp_path, schema=schema)
    told = site_statistics(site, the_spec(schema), 0.25)["classes"]
    assert told == {"0": 50, "1": 30, "2": "not told", "3": "fewer than 10"}


def test_a_check_says_what_can_be_read(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    values: dict[str, Value] = {"dataset": "own-table", "schema": SCHEMA.to_json()}
    lines = check_site(Site("north", tmp_path, schema=SCHEMA), values)
    assert lines[0] == (
        "site north: 32 training rows and 8 test rows can be read; inputs: age, sex=01, "
        "sex=02, bp"
    )
    assert "class no: north 16" in lines


def test_columns_named_in_the_experiment_are_those_that_are_read(tmp_path: Path) -> None:
    frame = FRAME.assign(grade=[0, 1, 2, 1] * 10)
    frame.to_csv(tmp_path / "a.csv", index=False)
    for names in ("age, bp", "bp, age"):
        keys: dict[str, Value] = {"columns": names, "target": "grade", "table-classes": 3}
        spec = federated_spec({"dataset": "own-table", **keys})
        rows = load_site_rows(Site("north", tmp_path, schema=spec.schema), spec, 0.25)
        assert rows.columns == tuple(names.split(", "))
        first = rows.train.features[:, 0] < 90
        assert bool(first.all()) == (names == "age, bp")
        assert set(rows.train.labels.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_declared_value_is_no_missing_one(suffix: str, tmp_path: Path) -> None:
    """NA is a country among these, none among the numbers, and a class."""
    schema = TableSchema(
        ("age", "country"),
        "answer",
        ("None", "some"),
        categories={"country": ("DE", "NA")},
        missing="mean",
    )
    frame = pd.DataFrame(
        {"age": ["30", "NA", "50", "60"], "country": ["NA", "DE", "NA", "DE"]}
    )
    frame["answer"] = ["None", "some", "some", "None"]
    if suffix == "parquet":
        frame["age"] = [30.0, np.nan, 50.0, 60.0]
        frame.to_parquet(tmp_path / "rows.parquet")
    else:
        frame.to_csv(tmp_path / "rows.csv", index=False)
    file = tmp_path / f"rows.{suffix}"
    spec = replace(
        DATASETS["own-table"],
        schema=schema,
        input_shape=(3,),
        num_classes=2,
        label_column="answer",
    )
    arrays, *_ = read_files(Site("a", file, schema=schema), spec)
    assert arrays["features"][:, 1:].tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert np.isnan(arrays["features"][:, 0]).tolist() == [False, True, False, False]
    assert arrays["labels"].tolist() == [0, 1, 1, 0]
    inputs = schema.encoded(
        read_table(file, texts=schema.categories, values=schema.declared_values())
    )
    assert inputs[:, 1:].tolist() == arrays["features"][:, 1:].tolist()


def test_rows_are_unpacked_by_their_longest_texts(tmp_path: Path) -> None:
    """Many short texts cost no time, and one long one in a dictionary no memory."""
    short = pa.table({"a": [f"value {n % 5000}" for n in range(50_000)]})
    long = pa.table({"a": ["x", *["y" * 2**24] * 8]})
    decimals = pa.table({"a": pa.array([Decimal("1.5")] * 50_000)})
    texts = [None, *["y" * 2**24] * 8]
    inner = pa.table({"a": pa.array([{"b": text} for text in texts])})
    lists = pa.table({"a": pa.array([[text] if text else [] for text in texts])})
    expected = {
        "short": 2**16,
        "long": 4,
        "decimals": 2**16,
        "inner": 4,
        "lists": 1,
        "dot": 4,
    }
    tables = {"short": short, "long": long, "decimals": decimals}
    tables |= {"inner": inner, "lists": lists, "dot": long.rename_columns(["a.b"])}
    for name, table in tables.items():
        file = tmp_path / f"{name}.parquet"
        pq.write_table(table, file)
        for names in ((), tuple(table.column_names)):
            rows = rows_at_once(file, pq.ParquetFile(file), names, 2**16)
            assert rows == expected[name], name
