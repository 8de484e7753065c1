import subprocess
import sys

import numpy as np
import pytest
import torch

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data import (
    DATASETS,
    PARTITIONERS,
    DataSettings,
    RawData,
    federated,
    load_federated_data,
    splits,
)
from fedsuite.data.digits import Digits

from . import parquet_files as files


def test_digits_by_default():
    data = load_federated_data({}, seed=0)
    assert (data.num_clients, data.num_classes, data.input_shape) == (10, 10, (1, 8, 8))
    clients = [data.client(k) for k in range(10)]
    assert sum(len(c.train) for c in clients) + sum(len(c.test) for c in clients) == 1797
    assert sum(len(c.test) for c in clients) == len(data.test_set()) == 359
    for client in clients:
        for split in (client.train, client.test):
            assert split.features.shape == (len(split), 1, 8, 8)
            assert split.features.dtype == torch.float32
            assert split.labels.dtype == torch.int64
            assert split.features.min() == 0 and split.features.max() == 1


def test_rows_reach_the_right_client():
    """A client's inputs and labels are those of the raw rows that the partition names."""
    data = load_federated_data({"partitioner": "shards", "num-clients": 5}, seed=1)
    raw = Digits().load(DATASETS["digits"], None)
    train_rows, test_rows = splits.split_rows(raw, 0.2)
    for k in range(5):
        for rows, positions, split in (
            (train_rows, data.partition.train[k], data.client(k).train),
            (test_rows, data.partition.test[k], data.client(k).test),
        ):
            expected = raw.features[rows[positions]].astype(np.float32) / 16
            assert np.array_equal(split.features.numpy(), expected)
            assert np.array_equal(split.labels.numpy(), raw.labels[rows[positions]])


def test_all_seeds_share_one_test_part():
    first, second = (load_federated_data({}, seed) for seed in (0, 1))
    assert torch.equal(first.test_set().features, second.test_set().features)
    assert first.fingerprint != second.fingerprint


def test_test_fraction_and_class_balance():
    data = load_federated_data({"test-fraction": 0.5, "num-clients": 1}, seed=0)
    assert len(data.test_set()) == pytest.approx(1797 / 2, abs=5)
    shares = np.bincount(data.test_set().labels) / (
        data.class_counts()[0] + data.test_class_counts()[0]
    )
    assert np.abs(shares - 0.5).max() < 0.01


def test_split_rows_keeps_published_split_and_owners():
    raw = RawData(np.zeros((5, 1), np.uint8), np.zeros(5, np.int64), num_train=3)
    assert [rows.tolist() for rows in splits.split_rows(raw, 0.5)] == [[0, 1, 2], [3, 4]]
    ids = np.repeat(np.arange(4), [1, 2, 10, 100])
    raw = RawData(np.zeros((113, 1), np.uint8), np.zeros(113, np.int64), ids)
    train, test = splits.split_rows(raw, 0.1)
    assert sorted([*train, *test]) == list(range(113))
    assert np.bincount(ids[test], minlength=4).tolist() == [0, 1, 1, 10]


def test_split_rows_takes_the_same_share_of_each_stratum():
    strata = np.repeat(np.arange(3), [50, 10, 2])
    raw = RawData(np.zeros((62, 1)), np.zeros(62, np.int64), strata=strata)
    assert np.bincount(strata[splits.split_rows(raw, 0.2)[1]]).tolist() == [10, 2, 1]


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_split_rows_keeps_groups_whole(fraction):
    """Groups of 1 to 4 rows, here and there in the table, some with rows of two owners."""
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(100), rng.integers(1, 5, 100)))
    ids = rng.integers(0, 4, len(groups))
    raw = RawData(np.zeros((len(ids), 1)), np.zeros(len(ids), int), ids, groups=groups)
    train, test = splits.split_rows(raw, fraction)
    assert not set(groups[train]) & set(groups[test])
    assert sorted([*train, *test]) == list(range(len(ids)))
    assert len(set(groups[test])) == pytest.approx(100 * fraction, abs=2)


def test_scaling(tmp_path):
    spec = DATASETS["cifar10"]
    pixels, _ = files.write_dataset(spec, tmp_path)
    values = {"dataset": "cifar10", "data-dir": str(tmp_path), "num-clients": 1}
    unit = load_federated_data({**values, "scaling": "unit"}, 0).client(0).train.features
    standard = load_federated_data(values, 0).client(0).train.features
    assert np.array_equal(unit.numpy(), pixels[:12].astype(np.float32) / np.float32(255))
    mean = np.array(spec.mean, np.float32)[:, None, None]
    std = np.array(spec.std, np.float32)[:, None, None]
    assert np.allclose(standard.numpy(), (unit.numpy() - mean) / std, atol=1e-6)


def test_data_folder_from_the_environment(tmp_path, monkeypatch):
    files.write_dataset(DATASETS["mnist"], tmp_path)
    monkeypatch.setenv("FEDSUITE_DATA", str(tmp_path))
    data = load_federated_data({"dataset": "mnist", "num-clients": 2}, 0)
    assert len(data.client(0).train) == 6
    assert data.description["train-rows"] == 12


def test_data_folder_that_does_not_exist(tmp_path):
    values = {"dataset": "mnist", "data-dir": str(tmp_path / "typo")}
    with pytest.raises(DataError, match=r"data folder .*typo .* does not exist"):
        load_federated_data(values, 0)
    assert load_federated_data({"data-dir": str(tmp_path / "typo")}, 0)  # digits need none


def test_natural_owners(tmp_path):
    files.write_dataset(DATASETS["femnist"], tmp_path)
    values = {
        "dataset": "femnist",
        "data-dir": str(tmp_path),
        "partitioner": "natural-id",
        "num-clients": 3,
    }
    data = load_federated_data(values, 0)
    clients = [data.client(k) for k in range(3)]
    assert [(len(c.train), len(c.test)) for c in clients] == [(3, 1)] * 3


def test_result_is_shared():
    data = load_federated_data({}, 0)
    assert load_federated_data({"num-clients": 10, "learning-rate": 0.1}, 0) is data
    assert load_federated_data({"num-clients": 9}, 0) is not data


@pytest.mark.parametrize("client_id", [-1, 10])
def test_no_such_client(client_id):
    with pytest.raises(DataError, match=f"no client {client_id}: the data has 10 clients"):
        load_federated_data({}, 0).client(client_id)


@pytest.mark.parametrize(("most", "reads"), [(10_000, 3), (10, 0)])
def test_small_clients_are_read_ahead_and_large_ones_left(most, reads, monkeypatch):
    values = {"partitioner": "dirichlet", "client-validation-fraction": 0.2}
    monkeypatch.setattr(federated, "_READ_TOGETHER", most)
    data = load_federated_data(values, seed=4)
    data.read_ahead([3, 0, 9])
    assert len(data._ahead) == reads


def test_rows_that_are_read_ahead_are_those_of_each_client():
    values = {"partitioner": "dirichlet", "client-validation-fraction": 0.2}
    data = load_federated_data(values, seed=3)
    data.read_ahead([4, 1, 7])
    for client_id in (4, 1, 7):
        ahead = data.client(client_id)
        alone = data.client(client_id)
        assert alone is not ahead
        for part in ("train", "test", "validation"):
            found, true = getattr(ahead, part), getattr(alone, part)
            assert torch.equal(found.features, true.features)
            assert torch.equal(found.labels, true.labels)
            assert found.features.data_ptr() % 64 == 0
            # In memory of its own: what is cached keeps no other client's rows alive.
            assert found.features.untyped_storage().nbytes() == found.features.nbytes


def test_counts_agree_with_the_clients():
    data = load_federated_data({"partitioner": "dirichlet", "num-clients": 4}, 0)
    for client_id in range(4):
        client = data.client(client_id)
        trained, tested = (
            np.bincount(part.labels, minlength=10).tolist()
            for part in (client.train, client.test)
        )
        assert data.class_counts()[client_id].tolist() == trained
        assert data.test_class_counts()[client_id].tolist() == tested


def test_description_records_unused_rows():
    data = load_federated_data({"partitioner": "class-count"}, 0)
    used = int(data.class_counts().sum())
    assert data.description["train-rows"] == used
    assert data.description["unused-train-rows"] == 1438 - used > 0
    assert data.description["fingerprint"] == data.fingerprint


def test_description_tells_what_always_guessing_one_class_gives():
    data = load_federated_data({"partitioner": "class-count", "num-clients": 2}, 0)
    counts = data.test_class_counts().sum(axis=0)
    assert data.description["largest-class-test"] == counts.max() / counts.sum() > 0.5


def test_fingerprint_sees_indices_and_labels():
    spec = DATASETS["digits"]
    none = np.empty(0, np.int64)
    rows = splits.Parts(np.arange(6), np.arange(6), np.arange(6), none)
    labels = np.array([3, 3, 4, 4, 5, 5])

    def fingerprint(labels, train, test=((0, 2), (1, 3))):
        raw = RawData(np.zeros((6, 1, 8, 8), np.uint8), labels)
        part = federated.Partition(tuple(map(np.array, train)), tuple(map(np.array, test)))
        return federated.FederatedData(spec, raw, rows, part, "unit", "iid").fingerprint

    base = fingerprint(labels, ((0, 2), (1, 3)))
    assert base == fingerprint(labels.copy(), ((0, 2), (1, 3)))
    others = [
        fingerprint(labels, ((1, 2), (0, 3))),  # other rows, the same labels
        fingerprint(labels + 1, ((0, 2), (1, 3))),  # the same rows, other labels
        fingerprint(labels, ((0,), (1, 2, 3))),
        fingerprint(labels, ((0, 2), (1, 3)), test=((1, 2), (0, 3))),
    ]
    assert len({base, *others}) == 5


def test_fingerprint_is_the_same_in_another_process():
    program = (
        "from fedsuite.data import load_federated_data as load\n"
        "print(load({'partitioner': 'dirichlet'}, 5).fingerprint)"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (
        printed.strip() == load_federated_data({"partitioner": "dirichlet"}, 5).fingerprint
    )


def test_import_is_light():
    program = (
        "import sys, fedsuite.data\n"
        "heavy = 'torch datasets flwr_datasets flwr sklearn pyarrow PIL'.split()\n"
        "print(sorted(set(heavy) & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "imagenet"}, "dataset = 'imagenet': did you mean 'tiny-imagenet'"),
        ({"partitioner": "magic"}, "partitioner = 'magic': expected one of iid, "),
        ({"num-clients": 0}, "num-clients = 0: expected a whole number >= 1"),
        ({"num-clients": "10"}, "num-clients = '10'"),
        ({"test-fraction": 1.0}, "test-fraction = 1.0"),
        ({"partitioner": "shards", "shards-per-client": 0}, "shards-per-client = 0"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        load_federated_data(values, 0)


def test_keys_are_unique_and_their_defaults_allowed():
    sources = (spec.source for spec in DATASETS.values())
    declaring = (DataSettings, *PARTITIONERS.values(), *sources)
    keys = [key for settings in declaring for key in settings.KEYS]
    assert len({key.name for key in keys}) == len(set(keys))
    for key in keys:
        assert key.parse(key.default) == key.default
        assert key.help and "\n" not in key.help


@pytest.mark.parametrize("spec", DATASETS.values(), ids=lambda s: s.name)
def test_specs_are_consistent(spec):
    channels = spec.input_shape[0] if spec.is_image else 0
    assert channels == len(spec.mean) == len(spec.std)
    assert bool(spec.hub_id or spec.files) == bool(spec.folder)
    assert not spec.id_column or not spec.test_splits  # owners need rows in both parts
