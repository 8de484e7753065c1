"""Whatever an adapter or a function of one's own returns is rows, or one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.core.errors import DataError
from fedsuite.data import DATASETS, Split
from fedsuite.data.own_rows import OwnRows
from fedsuite.data.site import Site, SiteData
from fedsuite.data.site_loading import check_rows
from tests.data.site_files import load_site_data

TABLE = replace(DATASETS["own-table"], name="rows", input_shape=(3,), num_classes=2)


def part(count: int = 6, **changes: Any) -> Split:
    labels = torch.arange(count) % 2
    return replace(Split(torch.rand(count, 3), labels), **changes)


IDS = np.arange(6), 10 + np.arange(4)

FORMS: dict[str, tuple[Any, str]] = {
    "no data": (None, "returned a NoneType: return a SiteData"),
    "no test part": (SiteData(part(), None), "test part: there is none: give a Split"),
    "no training part": (SiteData(None, part()), "training part: there is none"),
    "pairs": (SiteData((1, 2), part()), "training part: it is a tuple: give a Split"),
    "lists": (SiteData(part(features=[[1.0] * 3]), part()), "features are no torch tensor"),
    "labels as a list": (SiteData(part(labels=[0, 1]), part()), "labels are no torch"),
    "no labels": (SiteData(part(labels=None), part()), "labels are no torch tensor"),
    "one number": (SiteData(part(features=torch.tensor(1.0)), part()), "shape ()"),
    "numbers": (SiteData(part(features=torch.rand(6)), part()), "inputs are of shape (6,)"),
    "labels int32": (SiteData(part(), part(labels=torch.zeros(6).int())), "torch.int32"),
    "labels NaN": (
        SiteData(part(labels=torch.full((6,), float("nan"))), part()),
        "labels are torch.float32",
    ),
    "half": (SiteData(part(features=torch.rand(6, 3).bfloat16()), part()), "bfloat16"),
    "gradient": (
        SiteData(part(features=torch.rand(6, 3, requires_grad=True)), part()),
        "return a plain tensor",
    ),
    "sparse": (
        SiteData(part(features=torch.rand(6, 3).to_sparse()), part()),
        "return a plain tensor",
    ),
    "NaN": (SiteData(part(), part(features=torch.full((6, 3), float("nan")))), "hold NaN"),
    "empty": (SiteData(part(0), part(0)), "no rows: give at least one"),
    "other width": (SiteData(part(), part(features=torch.rand(6, 4))), "shape (4,)"),
    "label below 0": (SiteData(part(labels=torch.full((6,), -1)), part()), "a label is"),
    "ids as lists": (
        SiteData(part(), part(4), ([0] * 6, [1] * 4)),
        "training part: ids are a list: give one whole number or text per row",
    ),
    "ids of one part": (
        SiteData(part(), part(4), IDS[0]),
        "ids are a ndarray: give two NumPy arrays",
    ),
    "three ids": (SiteData(part(), part(4), (*IDS, IDS[0])), "ids are a tuple: give two"),
    "too few ids": (
        SiteData(part(), part(4), (IDS[0][:5], IDS[1])),
        "training part: 5 ids and 6 rows: expected as many",
    ),
    "ids the other way round": (
        SiteData(part(), part(4), IDS[::-1]),
        "training part: 4 ids and 6 rows",
    ),
    "too many ids": (
        SiteData(part(), part(3), IDS),
        "test part: 4 ids and 3 rows: expected as many",
    ),
    "ids in columns": (
        SiteData(part(), part(4), (IDS[0][:, None], IDS[1])),
        "ids are a int64 array",
    ),
    "ids NaN": (SiteData(part(), part(4), (IDS[0] * np.nan, IDS[1])), "a float64 array"),
    "ids of objects": (
        SiteData(part(), part(4), (IDS[0].astype(object), IDS[1])),
        "ids are a object array",
    ),
    "ids of both parts": (SiteData(part(), part(4), (IDS[0], IDS[0][:4])), "4 ids are in"),
    "columns as text": (SiteData(part(), part(), columns="abc"), "columns = 'abc': give"),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("door", ["site", "function"])
def test_other_forms_are_one_line(
    name: str, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reason = FORMS[name]
    with pytest.raises(DataError) as caught:
        if door == "site":
            check_rows("here", "adapter", TABLE, data)
        else:
            load(data, monkeypatch)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", [None, part(0)])
@pytest.mark.parametrize("lacks", ["train", "test"])
def test_a_site_may_lack_a_part_and_a_table_to_divide_may_not(
    missing: Any, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedsuite.data.site_loading as module

    data = replace(SiteData(part(), part()), **{lacks: missing})
    monkeypatch.setattr(module, "_load_adapter", lambda _: lambda *_: data)
    site = Site("a", tmp_path, adapter="own:rows")
    rows = load_site_data(site, TABLE, "standard", 0.5, 0.2)
    assert len(rows.test) == (0 if lacks == "test" else 6)
    assert bool(len(rows.train)) == (lacks == "test")
    assert rows.train.features.shape[1:] == rows.test.features.shape[1:] == (3,)
    with pytest.raises(DataError, match=r"(test|training) part: "):
        load(data, monkeypatch)


def load(data: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    import fedsuite.data.own_rows as module

    monkeypatch.setattr(module, "import_code", lambda _: lambda *_: data)
    return OwnRows().load(replace(TABLE, reader="own:rows"), None)


def test_a_site_has_no_owners_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedsuite.data.site_loading as module

    data = SiteData(part(), part(4), owners=IDS)
    monkeypatch.setattr(module, "_load_adapter", lambda _: lambda *_: data)
    site = Site("a", tmp_path, adapter="own:rows")
    with pytest.raises(DataError, match="owners have no use, a site being one"):
        load_site_data(site, TABLE, "standard", 0.5)


def test_ids_of_numbers_and_of_text_are_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (np.int32, np.uint64, str):
        ids = IDS[0].astype(kind), IDS[1].astype(kind)
        raw = load(SiteData(part(), part(4), ids), monkeypatch)
        assert raw.groups.tolist() == [*ids[0].tolist(), *ids[1].tolist()]


def test_parts_of_two_types_are_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(6, 1, 2, 2, dtype=torch.uint8)
    data = SiteData(part(features=images), part(features=images.float()))
    with pytest.raises(DataError, match=r"torch.uint8 in the training part and torch.fl"):
        load(data, monkeypatch)
