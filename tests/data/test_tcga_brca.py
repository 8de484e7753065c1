"""Six regions: rows by hand, the published split, and files that are refused."""

import csv
import re
from pathlib import Path

import pytest
import torch

from fedsuite.core.errors import DataError
from fedsuite.data import load_federated_data
from fedsuite.data.tcga_brca import REGIONS, WIDTH


def write(root: Path, changes: dict[int, list[str]] | None = None) -> dict[str, object]:
    """Write two training rows and one test row a region, and one patient of none."""
    folder = root / "tcga_brca"
    folder.mkdir(exist_ok=True)
    names = [f"x{k}" for k in range(WIDTH)]
    rows, folds = [], []
    for number in range(3 * len(REGIONS) + 1):
        rows.append([f"p{number}", *map(str, range(number, number + WIDTH)), "1.0", "30.0"])
        part, region = ("train", "train", "test")[number % 3], number // 3
        if region < len(REGIONS):
            folds.append([f"p{number}", part, f"{part}_{region}"])
    for number, cells in (changes or {}).items():
        rows[number] = cells
    for name, header, lines in (
        ("brca.csv", ["pid", *names, "E", "T"], rows),
        ("train_test_split.csv", ["pid", "fold", "fold2"], folds),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *lines])
    return {
        "dataset": "tcga-brca",
        "data-dir": str(root),
        "partitioner": "natural-id",
        "natural-ids": "each",
        "num-clients": len(REGIONS),
    }


def test_each_region_is_a_client_with_times_and_events(tmp_path: Path) -> None:
    data = load_federated_data(write(tmp_path), 0)
    for region in range(len(REGIONS)):
        client = data.client(region)
        first = client.train.features[:, 0].tolist()
        assert first == [3.0 * region, 3.0 * region + 1]
        assert client.test.features[:, 0].tolist() == [3.0 * region + 2]
        assert client.train.labels.dtype == torch.float32
        assert client.train.labels.tolist() == [[30.0, 1.0]] * 2
    assert data.num_classes == 1 and data.spec.task == "survival"


def test_intervals_are_the_width_of_a_model(tmp_path: Path) -> None:
    values = {**write(tmp_path), "loss": "discrete-time", "interval-ends": "10, 20, 40"}
    assert load_federated_data(values, 0).num_classes == 3


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1.0", "x"], "row 0, T: expected a number, not 'x'"),
        (["2.0", "30"], "row 0: T = 30 and E = 2: expected a time from 0, and 1 or 0"),
        (["1.0", "-1"], "row 0: T = -1 and E = 1: expected a time"),
        (["1.0"], "row 0, T: expected a number, not ''"),
    ],
)
def test_bad_cells_are_named(cells: list[str], message: str, tmp_path: Path) -> None:
    values = write(tmp_path, {0: ["p0", *["0"] * WIDTH, *cells]})
    with pytest.raises(DataError, match=re.escape(message)):
        load_federated_data(values, 0)
