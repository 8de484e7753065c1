"""A table's schema: what it says, what it makes of a table, and what it refuses."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedsuite.core.column_scaling import ColumnScaling, ColumnSums
from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data.schema import TableSchema

TEXT = """
columns = ["age", "bp[2]", "sex"]
target = "died"
classes = ["no", "yes"]
missing = "indicator"

[categories]
sex = ["f", "m"]
"""
SCHEMA = TableSchema.parse(TEXT)
TABLE = {
    "sex": ["f", None, "m"],
    "died": ["no", "yes", "no"],
    "bp": [[1.0, 2.0], [3.0, None], [5.0, 6.0]],
    "unused": [9, 9, 9],
    "age": [40, None, 60],
}
INPUTS = ("age", "bp[0]", "bp[1]", "sex=f", "sex=m")
MISSING = ("age is missing", "bp[0] is missing", "bp[1] is missing")


def test_inputs_follow_from_the_schema_and_not_from_the_rows() -> None:
    assert SCHEMA.inputs == INPUTS + MISSING
    assert SCHEMA.dtypes == {"age": "number", "bp[2]": "number", "sex": "category"}
    assert SCHEMA.num_classes == 2
    rows = SCHEMA.encoded(TABLE)
    nan = np.nan
    np.testing.assert_array_equal(
        rows,
        [
            [40, 1, 2, 1, 0, 0, 0, 0],
            [nan, 3, nan, 0, 0, 1, 0, 1],
            [60, 5, 6, 0, 1, 0, 0, 0],
        ],
    )
    assert rows.dtype == np.float32
    assert SCHEMA.labels(TABLE).tolist() == [0, 1, 0]


def test_any_form_of_a_table_in_any_order_gives_the_same() -> None:
    frame = pa.table(TABLE).to_pandas()
    for table in (pa.table(TABLE), frame, frame[sorted(frame.columns)]):
        np.testing.assert_array_equal(SCHEMA.encoded(table), SCHEMA.encoded(TABLE))
    again = TableSchema.from_dict(json.loads(SCHEMA.to_json()))
    assert again == SCHEMA


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("1.50"), Decimal("2.25"), Decimal("3.00")]),
        pa.array([True, False, True]),
        pa.array([1, 2, 3], pa.uint8()),
        pa.array([1.0, 2.0, 3.0], pa.float16()),
        pa.array([1.5, 1.5, 2.0]).dictionary_encode(),
    ],
)
def test_kinds_of_numbers(values: Any) -> None:
    schema = TableSchema(("a",), "y")
    (wanted,) = np.array([values.to_pylist()], np.float32)
    assert schema.encoded({"a": values})[:, 0].tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda k: pa.list_(k, 2)])
def test_kinds_of_lists(kind: Any) -> None:
    schema = TableSchema(("a[2]",), "y")
    lists = pa.array([[1, 2], [3, 4]], kind(pa.float32()))
    assert schema.encoded({"a": lists}).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="lists of another length than 3, or none"):
        TableSchema(("a[3]",), "y").encoded({"a": lists})
    with pytest.raises(DataError, match=r"holds lists: write a\[N\] in the schema"):
        TableSchema(("a",), "y").encoded({"a": lists})


def test_categories_of_whole_numbers_are_the_same_with_a_value_missing() -> None:
    schema = TableSchema(("a",), "y", categories={"a": ("0", "1")}, missing="mean")
    whole = schema.encoded({"a": pa.array([0, 1])})
    floats = schema.encoded({"a": pa.array([0.0, 1.0, None])})
    assert floats.tolist() == [*whole.tolist(), [0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["a", "b", "c"]}, "column 'age' holds string, not numbers: list its"),
        ({"age": pa.array([1, 2, 3], pa.timestamp("s"))}, "such as days since a date"),
        ({"age": [1.0, float("inf"), 1.0]}, "column 'age', row 1: not a finite number"),
        ({"sex": ["f", "x", "m"]}, "column 'sex' has 'x', and its categories are 'f', 'm'"),
        ({"sex": [["f"], ["m"], ["f"]]}, "column 'sex' holds list<"),
    ],
)
def test_a_column_of_another_kind(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        SCHEMA.encoded(TABLE | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_that_is_wrong_is_one_line() -> None:
    strict = TableSchema(("age", "height", "sex"), "died", categories={"sex": ("f", "m")})
    with pytest.raises(DataError) as caught:
        strict.encoded(TABLE, where="rows.csv")
    message = str(caught.value)
    assert message.startswith("rows.csv: 3 faults: (1) column 'age' has 1 missing values")
    assert "(2) no column 'height'; it has" in message
    assert "(3) column 'sex' has 1 missing values, the first in row 1" in message
    twice = pa.table([[1], [2], [3]], names=["age", "age", "height"])
    with pytest.raises(DataError, match="column 'age' is there 2 times: rename all but"):
        strict.encoded(twice)
    with pytest.raises(DataError, match="a list has no named columns"):
        SCHEMA.encoded([1, 2])


@pytest.mark.parametrize(
    ("classes", "labels", "message"),
    [
        (("no", "yes"), ["no", "maybe", "yes"], "has 'maybe', and the classes are 'no'"),
        (("no", "yes"), ["no", None, "yes"], "column 'died' has 1 missing values"),
        ((), ["no", "yes", "no"], "name its classes in a schema"),
        ((), [0, 1, 2], "column 'died', row 2: label 2 is outside 0 to 1"),
        ((), [0.0, 1.0, 1.0], "column 'died' holds double, not whole numbers"),
    ],
)
def test_labels(classes: tuple[str, ...], labels: list[Any], message: str) -> None:
    schema = TableSchema(("age",), "died", classes)
    with pytest.raises(DataError) as caught:
        schema.labels({"died": labels})
    assert message in str(caught.value)


def test_targets_that_are_numbers_or_several() -> None:
    table = {"y": [0.5, 1.5], "z": [2, 3]}
    number = TableSchema(("a",), "y", num_classes=0).labels(table)
    assert (number.dtype, number.tolist()) == (np.float32, [0.5, 1.5])
    several = TableSchema(("a",), "y, z", num_classes=0).labels(table)
    assert several.tolist() == [[0.5, 2], [1.5, 3]]
    marks = TableSchema(("a",), "p, q").labels({"p": [0, 1], "q": [True, False]})
    assert (marks.dtype, marks.tolist()) == (np.int64, [[0, 1], [1, 0]])


def test_rows_of_word_numbers_stay_whole_numbers() -> None:
    schema = TableSchema(("words[3]",), "y", tokens=5)
    rows = schema.encoded({"words": [[1, 2, 0], [4, 0, 0]]})
    assert (rows.dtype, rows.tolist()) == (np.int64, [[1, 2, 0], [4, 0, 0]])
    with pytest.raises(DataError, match="row 1: token 5 is outside 0 to 4"):
        schema.encoded({"words": [[1, 2, 0], [5, 0, 0]]})
    with pytest.raises(DataError, match="tokens are whole numbers"):
        schema.encoded({"words": [[1.0, 2.0, 0.0]]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('columns = "a, a"', "column 'a' stands there twice"),
        ('columns = "a"\ntarget = "a"', "column 'a' stands there twice"),
        ('columns = "a"\nmissing = "zero"', "expected refuse, mean or indicator"),
        ('columns = "a"\nclases = ["x"]', "unknown key 'clases': known are columns"),
        ('columns = "a"\nclasses = ["x"]', "1 classes: expected at least 2"),
        ('columns = "a"\n[categories]\nb = ["x"]', "categories of 'b', which is none"),
        ('columns = "a"\n[categories]\na = ["x", "x"]', "a: a value stands there twice"),
        ('columns = "a[0]"', "lists of columns have 1 to"),
        ("target = 3\ncolumns = 'a'", "target = 3: expected text in quotes"),
        ("", "name at least one column and a target"),
        ('{"columns": ["a"]', "neither TOML nor JSON"),
        (r'columns = "C:\Users"', "in double quotes a backslash begins an escape"),
        ('columns = "a"\ntokens = 3\nmissing = "mean"', "rows of word numbers have no"),
    ],
)
def test_schemas_that_do_not_fit_together(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TableSchema.parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_as_windows_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert TableSchema.load(path) == SCHEMA
    path.write_text(SCHEMA.to_json())
    assert TableSchema.load(path) == SCHEMA
    with pytest.raises(ConfigError, match=r"cannot read schema .*none\.toml"):
        TableSchema.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"columns": ["age", "weight", "sex"]}, "lacks 'bp[2]' and has 'weight'"),
        ({"columns": ["bp[2]", "age", "sex"]}, "has them in the order 'bp[2]', 'age'"),
        ({"classes": ["yes", "no"]}, 'this one has ["yes", "no"], the other ["no", "yes"]'),
        ({"categories": {"sex": ["m", "f"]}}, 'categories: this one has {"sex": ["m", "f"'),
        ({"categories": {}}, "categories: this one has null"),
        ({"missing": "mean"}, 'missing: this one has "mean", the other "indicator"'),
        ({"target": "ill"}, 'target: this one has "ill", the other "died"'),
    ],
)
def test_a_difference_is_told_with_both_sides(
    change: dict[str, Any], difference: str
) -> None:
    other = TableSchema.from_dict(SCHEMA.to_dict() | change)
    assert difference in other.difference(SCHEMA)
    assert other.fingerprint != SCHEMA.fingerprint


# Sums


def test_sums_of_clients_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(1e6, 1.0, (300, 2)).astype(np.float32)
    rows[::7, 1] = np.nan
    parts = (rows[:10], rows[10:11], rows[11:])
    scaling = ColumnScaling.from_sums("federated", map(ColumnSums.of, parts))
    wide = rows.astype(np.float64)
    np.testing.assert_allclose(scaling.means, np.nanmean(wide, axis=0), rtol=1e-14)
    np.testing.assert_allclose(scaling.deviations, np.nanstd(wide, axis=0), rtol=1e-9)
    done = scaling.applied(rows)
    np.testing.assert_allclose(done.mean(axis=0), 0, atol=1e-6)
    assert done[0, 1] == 0.0, "a missing value is the mean"


def test_a_column_of_few_values_is_left_out_of_the_sums() -> None:
    rows = np.full((20, 2), np.nan, np.float32)
    rows[:, 0], rows[:9, 1] = 3.0, 4.0
    sums = ColumnSums.of(rows, least_rows=10)
    assert (sums.counts, sums.means) == ((20, 0), (3.0, 0.0))
    assert ColumnSums.of(rows, least_rows=9).counts == (20, 9)
    with pytest.raises(DataError, match=r"columns 1 \(counted from 0\) have no sums"):
        ColumnScaling.from_sums("federated", [sums])
    both = ColumnScaling.from_sums("federated", [sums, ColumnSums.of(rows)])
    assert both.means == (3.0, 4.0)
    assert both.deviations == (1.0, 1.0), "what never changes is not divided by 0"


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"counts": [1], "means": [0.0]},
        {"counts": [1], "means": [float("nan")], "squares": [0.0]},
        {"counts": [-1], "means": [0.0], "squares": [0.0]},
        {"counts": [1, 2], "means": [0.0], "squares": [0.0]},
        {"counts": ["x"], "means": [0.0], "squares": [0.0]},
    ],
)
def test_sums_that_are_none(told: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="sums of columns"):
        ColumnSums.from_dict(told)
