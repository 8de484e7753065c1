"""Data sets that a function of one's own reads."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data import load_federated_data
from fedsuite.experiment.experiment import Experiment
from tests.plug_ins.fakes import example, installed, write_package

SOURCE = """
import numpy as np
import torch
from fedsuite.data import Split
from fedsuite.data.site import SiteData

def rows(count, classes=3, kind=torch.float32):
    labels = torch.arange(count) % classes
    columns = labels.float(), torch.rand(count), torch.arange(count).float()
    features = torch.stack(columns, 1)
    return Split(features.to(kind), labels)

def table(data_dir, test_fraction):
    ids = np.arange(60) // 2, 100 + np.arange(20)
    return SiteData(rows(60), rows(20, 4), ids)

def owned(data_dir, test_fraction):
    wards = np.array(["b", "a", "c"])
    owners = wards[np.arange(60) % 3], wards[np.minimum(np.arange(20), 2)]
    return SiteData(rows(60), rows(20, 4), owners=owners)

def half_owned(data_dir, test_fraction):
    return SiteData(rows(60), rows(20), owners=(np.arange(60), np.arange(7)))

def told(data_dir, test_fraction):
    if data_dir is None or test_fraction != 0.3:
        raise RuntimeError(f"{data_dir} {test_fraction}")
    return SiteData(rows(60), rows(20))

def nothing(data_dir, test_fraction):
    return 3

def raises(data_dir, test_fraction):
    return 1 / 0

def integers(data_dir, test_fraction):
    return SiteData(rows(60, kind=torch.uint8), rows(20))

def no_rows(data_dir, test_fraction):
    return SiteData(rows(60), rows(0))
"""


@pytest.fixture
def reader(tmp_path: Path):
    write_package(tmp_path, "rows", {}, {"own_rows_here": SOURCE})
    with installed(tmp_path):
        yield


def load(function: str, **keys):
    values = {"dataset": f"own_rows_here:{function}", "num-clients": 3, **keys}
    return load_federated_data(Experiment.from_values(values).values, 0)


def test_rows_say_shape_and_classes_and_go_through_partitioners(reader) -> None:
    data = load("table", partitioner="pathological", **{"classes-per-client": 1})
    assert (data.input_shape, data.num_classes) == ((3,), 4)
    assert sorted(data.class_counts().max(axis=1)) == [20, 20, 20]
    assert sum(len(part) for part in data.partition.test) <= 20
    features = torch.cat([data.client(k).train.features for k in range(3)])
    # As they are: the third column is the row's number.
    assert sorted(features[:, 2].tolist()) == list(map(float, range(60)))


def test_rows_of_a_subject_stay_together(reader) -> None:
    data = load("table", **{"client-validation-fraction": 0.3})
    for train, kept in zip(data.partition.train, data.partition.validation, strict=True):
        assert not set(train // 2) & set(kept // 2)


def test_owners_are_what_natural_id_divides_by(reader) -> None:
    data = load("owned", partitioner="natural-id", **{"natural-ids": "largest"})
    # By size c, a and b with 20 training rows each, and 18, 1, 1 of the test rows.
    assert [len(part) for part in data.partition.test] == [18, 1, 1]
    assert [set(part % 3) for part in data.partition.train] == [{2}, {1}, {0}]
    with pytest.raises(DataError, match="names no owner"):
        load("table", partitioner="natural-id")


def test_the_function_draws_the_same_rows_again(reader) -> None:
    from fedsuite.data.loading import _divided, _loaded

    first = load("table").client(0).train.features
    for cache in (_divided, _loaded):
        cache.cache_clear()
    torch.rand(5)
    assert torch.equal(load("table").client(0).train.features, first)


def test_folder_and_fraction_reach_the_function(reader, tmp_path: Path) -> None:
    load("told", **{"data-dir": str(tmp_path), "test-fraction": 0.3})
    with pytest.raises(DataError, match=r"reading failed .RuntimeError: None 0.2"):
        load("told")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("nothing", "the function returned a int: return a SiteData"),
        ("raises", "reading failed .ZeroDivisionError"),
        ("integers", "training part: inputs are torch.uint8: expected torch.float32"),
        ("no_rows", "test part: no rows: give at least one"),
        ("half_owned", "test part: 7 owners and 20 rows: expected as many"),
        ("absent", "module own_rows_here has no 'absent'"),
    ],
)
def test_bad_rows_are_refused_in_one_line(reader, function: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"dataset own_rows_here:{function}.*{reason}"):
        load(function)


def test_images_are_scaled_to_one(tmp_path: Path) -> None:
    with example(tmp_path):
        values = Experiment.from_values({"dataset": "stripes", "num-clients": 2}).values
        data = load_federated_data(values, 0)
        assert (data.input_shape, data.num_classes) == ((1, 8, 8), 3)
        assert data.spec.is_image
        part = data.client(0).train.features
        assert part.dtype == torch.float32
        assert 0.9 < float(part.max()) <= 1 and float(part.min()) == 0
        counts = data.class_counts().sum(axis=0)
        assert np.all(counts > 100) and counts.sum() == 480


def test_sites_bring_rows_of_their_own() -> None:
    with pytest.raises(ConfigError, match=r"cannot go with sites = .*: its rows alone say"):
        Experiment.from_values({"dataset": "own_rows_here:table", "sites": "a, b"})
