"""A site's own data: node-config, adapters, the default reader, and every check."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedsuite.core.errors import ConfigError, DataError, FedsuiteError
from fedsuite.data import DATASETS, Split, load_federated_data
from fedsuite.data.site import Site, SiteData, site_from_config
from fedsuite.data.site_loading import check_rows
from fedsuite.data.site_parquet import read_site
from tests.data import parquet_files
from tests.data.site_files import (
    DIVIDED,
    PIXELS,
    digits_columns,
    load_site_data,
    write,
    write_site,
)

DIGITS = DATASETS["digits"]
TABLE = replace(
    DIGITS, name="table", num_classes=2, input_shape=(2,), mean=(), std=(), max_value=1
)
COLUMNS: dict[str, Any] = {
    "b": [1.0, 2.0, 3.0, 4.0],
    "a": [5, 6, 7, 8],
    "label": [0, 1, 0, 1],
    "note": ["w", "x", "y", "z"],
}


def a_site(data: Path, **options: Any) -> Site:
    return Site(name="north", data=data, **options)


def load_table(columns: dict[str, Any], folder: Path, **options: Any) -> SiteData:
    path = write(folder / "rows.parquet", columns)
    return read_site(a_site(path, **options), TABLE, 0.5)


def refused(columns: dict[str, Any], folder: Path, **options: Any) -> str:
    """Return the one line by which a table is refused; it names site and file."""
    path = write(folder / "rows.parquet", columns)
    with pytest.raises(DataError) as caught:
        load_site_data(a_site(path, **options), TABLE, "standard", 0.5)
    message = str(caught.value)
    assert message.startswith(f"site north: {path}")
    assert "\n" not in message
    return message


# Node-config


def test_node_config_names_everything() -> None:
    config = {
        "data": "/srv/a",
        "data-adapter": "own:read",
        "site": "north",
        "image-column": "scan",
        "label-column": "died",
        "id-column": "patient",
        "feature-columns": "age, sex",
        "partition-id": 3,
    }
    wanted = Site(
        "north", Path("/srv/a"), "own:read", "scan", "died", "patient", ("age", "sex")
    )
    assert site_from_config(config) == wanted
    assert site_from_config({"data": "/srv/a.parquet"}).name == "a.parquet"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "Flower's SuperNode with --node-config 'data="),
        ({"data": 3}, 'node-config data = 3: expected data="..."'),
        ({"data": ""}, "node-config data = ''"),
        ({"data": "rows"}, "expected an absolute path"),
        ({"data": "/a", "label_column": "y"}, "did you mean 'label-column'?"),
        ({"data": "/a", "feature-colums": "y"}, "did you mean 'feature-columns'?"),
        ({"data": "/a", "feature-columns": "x,x"}, "names a column twice"),
    ],
)
def test_node_config_that_cannot_be_read(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        site_from_config(config)
    assert message in str(caught.value)


# The default reader


def test_columns_are_taken_by_name_not_by_place(tmp_path: Path) -> None:
    data = load_table(COLUMNS, tmp_path / "one")
    turned = dict(reversed(COLUMNS.items()))
    other = load_table(turned, tmp_path / "two")
    assert torch.equal(data.train.features, other.train.features)
    rows = torch.cat([data.train.features, data.test.features])
    assert sorted(rows.tolist()) == [[5, 1], [6, 2], [7, 3], [8, 4]]  # a, then b
    assert rows.dtype == torch.float32


def test_named_columns_keep_their_order(tmp_path: Path) -> None:
    columns = COLUMNS | {"unused": [9, 9, 9, 9]}
    data = load_table(columns, tmp_path, feature_columns=("b", "a"))
    rows = torch.cat([data.train.features, data.test.features])
    assert sorted(rows.tolist()) == [[1, 5], [2, 6], [3, 7], [4, 8]]


def test_one_column_of_lists(tmp_path: Path) -> None:
    columns = {"both": [[1, 5], [2, 6], [3, 7], [4, 8]], "label": [0, 1, 0, 1]}
    data = load_table(columns, tmp_path)
    rows = torch.cat([data.train.features, data.test.features])
    assert sorted(rows.tolist()) == [[1, 5], [2, 6], [3, 7], [4, 8]]


def test_the_draw_is_the_same_at_each_start_and_in_each_class(tmp_path: Path) -> None:
    data = load_table(COLUMNS, tmp_path)
    again = load_table(COLUMNS, tmp_path)
    assert torch.equal(data.test.features, again.test.features)
    assert sorted(data.train.labels.tolist()) == sorted(data.test.labels.tolist()) == [0, 1]


def test_rows_of_one_id_stay_together(tmp_path: Path) -> None:
    patients = [f"p{i // 5}" for i in range(40)]
    columns = {
        "a": range(40),
        "b": range(40),
        "label": [i % 2 for i in range(40)],
        "patient": patients,
    }
    data = load_table(columns, tmp_path, id_column="patient")
    held = [{patients[int(i)] for i in p.features[:, 0]} for p in (data.train, data.test)]
    assert not held[0] & held[1]
    assert all(held)


def test_files_that_say_which_part_they_are(tmp_path: Path) -> None:
    site = a_site(write_site(tmp_path / "north", 1))
    wanted = load_federated_data(DIVIDED, 0).client(1)
    found = load_site_data(site, DIGITS, "standard", 0.2)
    for part, rows in ((found.train, wanted.train), (found.test, wanted.test)):
        assert torch.equal(part.features, rows.features)
        assert torch.equal(part.labels, rows.labels)


@pytest.mark.parametrize("scaling", ["standard", "unit"])
def test_images_are_scaled_as_the_data_sets_own(tmp_path: Path, scaling: str) -> None:
    spec = DATASETS["fashion-mnist"]
    pixels = parquet_files.random_pixels(spec, 6)
    labels = np.array([0, 0, 1, 1, 9, 9])
    table = parquet_files.table(spec, pixels, labels)
    table = table.rename_columns(["scan", "kind", "of_no_interest"])
    pq.write_table(table, tmp_path / "rows.parquet")
    site = a_site(tmp_path, image_column="scan", label_column="kind")
    data = load_site_data(site, spec, scaling, 0.5)
    raw = pixels.astype(np.float32) / 255
    if scaling == "standard":
        raw = (raw - 0.2860) / 0.3530
    rows = torch.cat([data.train.features, data.test.features]).numpy()
    order = np.lexsort(rows.reshape(6, -1).T)
    wanted = raw[np.lexsort(raw.reshape(6, -1).T)]
    np.testing.assert_allclose(rows[order], wanted, rtol=1e-5, atol=1e-6)


def test_encoded_images_of_a_data_set_with_other_raw_values(tmp_path: Path) -> None:
    """Digits go to 16 and encoded images to 255: white is 1 in both."""
    pixels = np.zeros((2, 1, 8, 8), np.uint8)
    pixels[:, 0, 0, 0] = 255
    spec = replace(DIGITS, image_column="image")
    pq.write_table(parquet_files.table(spec, pixels, [3, 3]), tmp_path / "a.parquet")
    data = load_site_data(a_site(tmp_path), DIGITS, "standard", 0.5)
    assert float(data.train.features.max()) == 1.0
    assert float(data.train.features.sum()) == 1.0


# What the default reader refuses


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    without = {k: v for k, v in COLUMNS.items() if k != "label"}
    message = refused(without, tmp_path)
    assert "no column 'label'; it has b, a, note: name yours" in message
    assert "no column 'age'" in refused(COLUMNS, tmp_path, feature_columns=("age", "b"))
    assert "no column 'who'" in refused(COLUMNS, tmp_path, id_column="who")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": [1.0, None, 3.0, 4.0]}, "column 'b' has 1 missing values"),
        (
            {"b": [1.0, 2.0, float("nan"), 4.0]},
            "column 'b' has 1 missing values, the first in row 2",
        ),
        ({"b": [1.0, 2.0, 3.0, 1e300]}, "column 'b', row 3: not a finite number"),
        ({"b": [[1], [2, 3], [4], [5]]}, "column 'b': lists of unequal length"),
        ({"c": [1, 2, 3, 4]}, "3 columns hold 3 numbers per row: data set table has 2"),
        ({"label": [0.0, 1.0, 0.0, 1.0]}, "column 'label' holds double, not whole"),
        ({"label": [0, 1, 0, 2]}, "column 'label', row 3: label 2 is outside 0 to 1"),
        ({"label": [0, 1, 0, None]}, "column 'label' has 1 missing values"),
    ],
)
def test_columns_that_cannot_be_used(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    assert message in refused(COLUMNS | change, tmp_path)


def test_text_is_no_feature(tmp_path: Path) -> None:
    message = refused(COLUMNS, tmp_path, feature_columns=("note", "b"))
    assert "column 'note' holds string, not numbers: list its values" in message


@pytest.mark.parametrize("options", [{}, {"id_column": "a", "label_column": "label"}])
def test_the_answer_is_no_feature(tmp_path: Path, options: dict[str, str]) -> None:
    path = write(tmp_path / "rows.parquet", COLUMNS)
    name = options.get("id_column", "label")
    site = a_site(path, feature_columns=("b", name), **options)
    with pytest.raises(DataError, match=f"column '{name}' is the label or the id"):
        load_site_data(site, TABLE, "standard", 0.5)


def test_one_id_in_files_of_both_parts(tmp_path: Path) -> None:
    columns = COLUMNS | {"patient": [1, 2, 3, 4]}
    write(tmp_path / "train-0.parquet", columns)
    write(tmp_path / "test-0.parquet", columns | {"patient": [5, 6, 3, 4]})
    with pytest.raises(DataError, match="2 ids are in both"):
        load_site_data(a_site(tmp_path, id_column="patient"), TABLE, "standard", 0.5)
    write(tmp_path / "test-0.parquet", columns | {"patient": [5, 6, 7, 8]})
    load_site_data(a_site(tmp_path, id_column="patient"), TABLE, "standard", 0.5)


def test_too_few_rows(tmp_path: Path) -> None:
    one = {name: values[:1] for name, values in COLUMNS.items()}
    write(tmp_path / "rows.parquet", one)
    alone = load_site_data(a_site(tmp_path), TABLE, "standard", 0.5)
    assert (len(alone.train), len(alone.test)) == (1, 0), "it trains, and has no scores"
    none = pa.table(COLUMNS).slice(0, 0)
    pq.write_table(none, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="no rows in any file"):
        load_site_data(a_site(tmp_path), TABLE, "standard", 0.5)


def test_files_that_are_not_there_or_no_parquet(tmp_path: Path) -> None:
    def fails(data: Path) -> str:
        with pytest.raises(DataError) as caught:
            load_site_data(a_site(data), TABLE, "standard", 0.5)
        return str(caught.value)

    assert "no such file or folder: name it with data" in fails(tmp_path / "none")
    assert "no file *.parquet, *.csv, *.tsv: put some there" in fails(tmp_path)
    write(tmp_path / "train-0.parquet", COLUMNS)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense")
    assert "not a readable Parquet file" in fails(tmp_path / "bad.parquet")


# Checks of what any adapter returns


def good(**changes: Any) -> SiteData:
    features = torch.full((2, 1, 8, 8), 16.0)
    part = Split(features, torch.tensor([0, 9]))
    return SiteData(replace(part, **changes), part)


def test_good_data_passes() -> None:
    check_rows("site north: /srv", "adapter", DIGITS, good())
    brightness = torch.full((2, 1, 8, 8), 16, dtype=torch.uint8)
    check_rows("site north: /srv", "adapter", DIGITS, good(features=brightness))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.zeros((2, 1, 8, 8))}, "features are no torch tensor"),
        ({"labels": torch.tensor([0.0, 9.0])}, "labels are torch.float32"),
        ({"labels": torch.zeros(2, 3, dtype=torch.int64)}, r"of shape (2, 3)"),
        ({"labels": torch.tensor([0])}, "2 inputs and 1 labels"),
        ({"labels": torch.tensor([0, 10])}, "a label is outside 0 to 9"),
        ({"labels": torch.tensor([-1, 9])}, "a label is outside 0 to 9"),
        ({"features": torch.zeros(2, 64)}, "data set digits has (1, 8, 8)"),
        ({"features": torch.zeros(2, 1, 8, 8).double()}, "inputs are torch.float64"),
        ({"features": torch.full((2, 1, 8, 8), float("nan"))}, "hold NaN or infinity"),
        ({"features": torch.full((2, 1, 8, 8), float("inf"))}, "hold NaN or infinity"),
        ({"features": torch.full((2, 1, 8, 8), 17.0)}, "expected raw values of 0 to 16"),
        ({"features": torch.full((2, 1, 8, 8), -1.0)}, "inputs lie in -1 to -1"),
        ({"features": torch.full((2, 1, 8, 8), 1.0)}, "go to 1 only and look scaled"),
    ],
)
def test_data_that_no_client_could_use(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        check_rows("site north: /srv", "adapter", DIGITS, good(**changes))
    assert message in str(caught.value)
    assert str(caught.value).startswith("site north: /srv, training part: ")


def test_an_adapter_that_returns_something_else() -> None:
    with pytest.raises(DataError, match="the adapter returned a tuple: return a SiteData"):
        check_rows("site north: /srv", "adapter", DIGITS, (1, 2))


# Adapters of the operator's own


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("hospital_reader")
    monkeypatch.setitem(sys.modules, "hospital_reader", module)
    return module


def test_an_adapter_of_the_operators_own(own_module: Any, tmp_path: Path) -> None:
    calls: list[Any] = []

    def read(*arguments: Any) -> SiteData:
        calls.append(arguments)
        return good()

    own_module.read = read
    site = a_site(tmp_path, adapter="hospital_reader:read")
    data = load_site_data(site, DIGITS, "standard", 0.25)
    assert calls == [(site, DIGITS, 0.25)]
    assert float(data.train.features.max()) == 1.0, "raw values of 16 are scaled here"


def test_an_adapter_that_fails_in_its_own_way(own_module: Any, tmp_path: Path) -> None:
    def read(*arguments: Any) -> SiteData:
        raise KeyError("no\ntable")

    own_module.read = read
    site = a_site(tmp_path, adapter="hospital_reader:read")
    with pytest.raises(DataError) as caught:
        load_site_data(site, DIGITS, "standard", 0.25)
    assert str(caught.value) == (
        f"site north: adapter hospital_reader:read failed on {tmp_path} (KeyError: "
        "'no\\ntable'): mend it or the data"
    )


@pytest.mark.parametrize(
    "adapter", ["read", "no_such_module:read", "fedsuite:nothing", "a:b:c", "os;x:y"]
)
def test_an_adapter_that_is_not_there(adapter: str, tmp_path: Path) -> None:
    with pytest.raises(FedsuiteError, match="data-adapter = "):
        load_site_data(a_site(tmp_path, adapter=adapter), DIGITS, "standard", 0.25)


def test_pixels_by_name(tmp_path: Path) -> None:
    """Columns given in another order than their names are other pictures."""
    columns = digits_columns(0, "train")
    write(tmp_path / "rows.parquet", columns)
    plain = load_site_data(a_site(tmp_path), DIGITS, "standard", 0.2)
    turned = load_site_data(
        a_site(tmp_path, feature_columns=PIXELS[::-1]), DIGITS, "standard", 0.2
    )
    flipped = turned.train.features.flatten(1).flip(1)
    assert torch.equal(plain.train.features.flatten(1), flipped)
