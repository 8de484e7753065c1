import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.data import (
    DATASETS,
    PARTITIONERS,
    FederatedData,
    Partition,
    RawData,
    load_federated_data,
)
from fedsuite.data.digits import Digits
from fedsuite.data.splits import Parts, draw_public, split_parts

from . import parquet_files as files
from .raw import raw_data

HELD_OUT = {"client-test-fraction": 0.2, "server-validation-fraction": 0.1}


def test_the_papers_shares_of_a_published_training_part():
    """7 : 1 : 2 of 60,000 rows; the published test part is the global test set."""
    labels = np.concatenate([np.arange(60_000), np.arange(10_000)]) % 10
    parts = split_parts(raw_data(labels, 60_000), 0.5, 0.2, 0.1)
    for rows, of_each in ((parts.train, 4200), (parts.validation, 600)):
        assert np.bincount(labels[rows]).tolist() == [of_each] * 10
    assert np.bincount(labels[parts.client_test]).tolist() == [1200] * 10
    assert np.array_equal(parts.test, np.arange(60_000, 70_000))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array),
    shares=st.tuples(st.floats(0, 0.45), st.floats(0, 0.45)),
    published=st.booleans(),
)
def test_no_row_has_two_purposes(labels, shares, published):
    num_train = (2 * len(labels) + 2) // 3 if published else None
    parts = split_parts(raw_data(labels, num_train), 0.3, *shares)
    plain = split_parts(raw_data(labels, num_train), 0.3)
    assert np.array_equal(parts.test, plain.test)
    apart = [parts.train, parts.validation, parts.test]
    if shares[0]:
        apart.append(parts.client_test)
    else:
        assert np.array_equal(parts.client_test, parts.test)
    assert sorted(np.concatenate(apart).tolist()) == list(range(len(labels)))
    assert all((np.diff(rows) > 0).all() for rows in apart)
    # Whoever trained on a class still has a row of it.
    assert set(labels[parts.train]) == set(labels[plain.train])


def test_what_is_held_out_is_drawn_at_random():
    """Of 1,000 rows of one class: no first or last ones, and two draws that differ."""
    labels = np.zeros(1200, np.int64)
    parts = split_parts(raw_data(labels, 1000), 0.5, 0.2, 0.2)
    for rows in (parts.client_test, parts.validation):
        assert len(rows) == 200
        assert rows.mean() == pytest.approx(500, abs=80)
        assert len(set(np.diff(rows).tolist())) > 5
    alone = split_parts(raw_data(labels, 1000), 0.5, 0.2, 0.0)
    assert not np.array_equal(alone.client_test, parts.validation)


def test_shares_are_of_each_owner_where_rows_have_owners():
    ids = np.repeat(np.arange(3), [10, 20, 40])
    parts = split_parts(raw_data(np.zeros(70, np.int64), 70, ids), 0.5, 0.2, 0.1)
    assert np.bincount(ids[parts.validation]).tolist() == [1, 2, 4]
    assert np.bincount(ids[parts.client_test]).tolist() == [2, 4, 8]


@pytest.mark.parametrize("name", [n for n in PARTITIONERS if n != "natural-id"])
def test_clients_hold_no_row_of_the_servers(name):
    """By their pixels: digits are all different."""
    values = {"partitioner": name, "dirichlet-min-size": 2, **HELD_OUT}
    data = load_federated_data(values, 0)

    def pixels(*splits):
        return {row.numpy().tobytes() for split in splits for row in split.features}

    clients = [data.client(k) for k in range(10)]
    train = pixels(*(client.train for client in clients))
    tested = pixels(*(client.test for client in clients))
    apart = [train, tested, pixels(data.validation_set()), pixels(data.test_set())]
    assert sum(map(len, apart)) == len(set().union(*apart))
    assert len(data.validation_set()) == pytest.approx(144, abs=5)
    assert len(data.test_set()) == len(load_federated_data({}, 0).test_set())
    assert data.description["validation-rows"] == len(data.validation_set())
    assert data.description["global-test-rows"] == len(data.test_set())


def test_labels_go_with_their_rows():
    raw = Digits().load(DATASETS["digits"], None)
    label_of = {
        (row / np.float32(16)).astype(np.float32).tobytes(): label
        for row, label in zip(raw.features, raw.labels, strict=True)
    }
    data = load_federated_data(HELD_OUT, 0)
    for split in (data.client(3).test, data.validation_set(), data.test_set()):
        for row, label in zip(split.features.numpy(), split.labels.tolist(), strict=True):
            assert label_of[row.tobytes()] == label


def test_nothing_is_held_out_unless_asked():
    data = load_federated_data({}, 0)
    assert len(data.validation_set()) == 0
    assert "validation-rows" not in data.description


def test_seeds_share_what_is_held_out():
    first, second = (load_federated_data(HELD_OUT, seed) for seed in (0, 1))
    assert torch.equal(first.validation_set().features, second.validation_set().features)


def test_fingerprint_sees_what_is_held_out():
    keys = list(HELD_OUT)
    values = [{}, HELD_OUT, {keys[0]: 0.2}, {keys[1]: 0.1}]
    prints = [load_federated_data(given, 0).fingerprint for given in values]
    assert len(set(prints)) == 4


def test_fingerprint_sees_which_rows_are_held_out():
    """Positions and labels of the clients are the same; the rows behind them are not."""
    spec, rows = DATASETS["digits"], np.arange(8)
    raw = RawData(np.zeros((8, 1, 8, 8), np.uint8), np.zeros(8, np.int64))
    partition = Partition((np.arange(2),), (np.arange(2),))

    def fingerprint(train, client_test, validation):
        parts = Parts(rows[train], rows[client_test], rows[6:], rows[validation])
        return FederatedData(spec, raw, parts, partition, "unit", "iid").fingerprint

    prints = [
        fingerprint([0, 1], [2, 3], [4, 5]),
        fingerprint([0, 4], [2, 3], [1, 5]),
        fingerprint([0, 1], [4, 3], [2, 5]),
        fingerprint([0, 1], [2, 3], [4]),
    ]
    assert len(set(prints)) == 4


def rows_of_tests_that_are_held_twice_are_used_once():
    values = {"partitioner": "covariate-shift", "shift-dimensions": 8}
    data = load_federated_data(values, 0)
    used = len(np.unique(np.concatenate(data.partition.train)))
    assert used < data.description["train-rows"] == 1438
    assert data.description["unused-train-rows"] == 1438 - used


def test_too_much_held_out():
    values = {"client-test-fraction": 0.5, "server-validation-fraction": 0.5}
    with pytest.raises(ConfigError, match=r"0\.5 and server-validation-fraction = 0\.5"):
        load_federated_data(values, 0)


def test_labels_of_shared_rows_cannot_be_flipped():
    values = {"partitioner": "covariate-shift", "label-noise": 0.1}
    with pytest.raises(ConfigError, match=r"label-noise = 0\.1: partitioner cov"):
        load_federated_data(values, 0)


def test_half_of_the_papers_fashion_mnist(tmp_path, monkeypatch):
    """POW: half of the rows, their training and test rows apart."""
    files.write_dataset(DATASETS["fashion-mnist"], tmp_path)
    values = {
        "dataset": "fashion-mnist",
        "data-dir": str(tmp_path),
        "partitioner": "power-law",
        "num-clients": 2,
        "data-fraction": 0.5,
    }
    data = load_federated_data(values, 0)
    assert [len(data.client(k).train) for k in range(2)] == [4, 2]
    assert data.description["unused-train-rows"] == 6


@given(
    labels=st.lists(st.integers(0, 4), min_size=8, max_size=80).map(np.array),
    published=st.booleans(),
    seed=st.integers(0, 50),
)
def test_a_fresh_split_uses_each_row_once_for_the_same_share(labels, published, seed):
    num_train = (3 * len(labels)) // 4 if published else None
    parts = split_parts(raw_data(labels, num_train), 0.25, fresh_seed=seed)
    rows = np.concatenate([parts.train, parts.test])
    assert sorted(rows.tolist()) == list(range(len(labels)))
    share = 0.25 if num_train is None else 1 - num_train / len(labels)
    counts, held = (np.bincount(labels[r], minlength=5) for r in (rows, parts.test))
    wanted = np.clip(np.round(share * counts), 1, np.maximum(counts - 1, 0))
    assert held.tolist() == np.minimum(wanted, np.maximum(counts - 1, 0)).tolist()


def test_a_fresh_split_is_another_for_each_seed():
    """Published rows are pooled; what is held out for other purposes moves too."""
    labels = np.arange(1200) % 10
    first, again, second = (
        split_parts(raw_data(labels, 1000), 0.2, 0.1, 0.1, 50, fresh_seed=seed)
        for seed in (1, 1, 2)
    )
    for name in ("train", "client_test", "test", "validation", "public"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(second, name))
    assert len(first.test) == 200
    assert not first.is_plain
    # Of the same rows too.
    rows = np.arange(1000)
    public = [draw_public(raw_data(labels, 1000), rows, 50, seed)[1] for seed in (1, 2)]
    assert not np.array_equal(*public)


def test_a_run_with_a_fresh_split_has_data_of_its_seed():
    """Shared splits differ by the partition alone; the default is one test part."""
    fresh = {"fresh-test-split": True}
    fingerprints = {load_federated_data(fresh, seed).fingerprint for seed in (0, 1, 2)}
    assert len(fingerprints) == 3
    shared = [rows_of_tests(load_federated_data({}, seed)) for seed in (1, 2)]
    assert shared[0] == shared[1]
    drawn = [rows_of_tests(load_federated_data(fresh, seed)) for seed in (1, 2)]
    assert len(drawn[0] & drawn[1]) < 0.5 * len(drawn[0])


def rows_of_tests(data: FederatedData) -> set[tuple[float, ...]]:
    """Return the inputs of all clients' test rows."""
    parts = (data.client(k).test.features.flatten(1) for k in range(data.num_clients))
    return {tuple(row) for part in parts for row in part.tolist()}
