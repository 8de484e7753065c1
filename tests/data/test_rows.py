"""Clients' rows without an object per client: the structure that a million of them need."""

import gc
import json
from pathlib import Path

import numpy as np
import pytest

from fedsuite.data.division import Partition, Samples
from fedsuite.data.federated import FederatedData
from fedsuite.data.loading import load_federated_data
from fedsuite.data.partition import Iid
from fedsuite.data.rows import Rows
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.membership import Hosts


def test_rows_are_the_arrays_that_they_were_made_of() -> None:
    arrays = [np.array([5, 2]), np.array([], np.int64), np.array([9, 1, 4])]
    rows = Rows.of(arrays)
    assert [r.tolist() for r in rows] == [[5, 2], [], [9, 1, 4]]
    assert [rows[k].tolist() for k in range(3)] == [[5, 2], [], [9, 1, 4]]
    assert rows[-1].tolist() == [9, 1, 4]
    assert [r.tolist() for r in rows[1:]] == [[], [9, 1, 4]]
    assert [r.tolist() for r in rows.ascending()] == [[2, 5], [], [1, 4, 9]]
    assert rows.owners.tolist() == [0, 0, 2, 2, 2]
    assert Rows.of(rows) is rows
    with pytest.raises(IndexError):
        rows[3]
    assert not Rows.of(())


def test_even_rows_are_those_of_array_split() -> None:
    for count in (1, 3, 7):
        expected = np.array_split(np.arange(16), count)
        found = Rows.even(np.arange(16), count)
        assert [r.tolist() for r in found] == [r.tolist() for r in expected]


def test_a_division_holds_positions_and_sizes_and_no_object_per_client() -> None:
    labels = np.zeros(60_000, np.int64)
    gc.collect()
    before = len(gc.get_objects())
    partition = Iid().divide(Samples(labels, labels), 30_000, seed=0)
    assert len(gc.get_objects()) - before < 100
    for part in (partition.train, partition.test):
        assert isinstance(part, Rows)
        assert part.positions.nbytes + part.sizes.nbytes == 60_000 * 8 + 30_000 * 8


def test_a_division_of_lists_is_packed() -> None:
    partition = Partition([np.array([1, 0])], [np.array([2])])
    assert isinstance(partition.train, Rows)
    assert not partition.validation


def digits(num_clients: int) -> FederatedData:
    values = {"dataset": "digits", "num-clients": num_clients, "partitioner": "shards"}
    return load_federated_data(values, seed=3)


def test_counts_by_client_and_class() -> None:
    data = digits(7)
    for client, counts in enumerate(data.class_counts()):
        expected = np.bincount(data.client(client).train.labels.numpy(), minlength=10)
        assert counts.tolist() == expected.tolist()


def test_tables_are_written_as_json_is(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {}, {})
    tables = {"train": np.arange(75_006).reshape(25_002, 3), "test": np.array([[7]])}
    others = {"shift": [{"a": 1.5}], "empty": {}}
    for rest in ({}, others):
        folder.write_tables("tables.json", tables, rest)
        plain = {name: table.tolist() for name, table in tables.items()} | rest
        expected = json.dumps(plain, indent=2) + "\n"
        assert (tmp_path / "run" / "tables.json").read_text() == expected
    folder.finish("finished")


def test_hosts_are_the_mapping_that_they_stand_for() -> None:
    hosts = Hosts({0: 70, 2: 72}, num_partitions=3, num_clients=8)
    assert dict(hosts) == {0: 70, 2: 72, 3: 70, 5: 72, 6: 70}
    assert len(hosts) == 5
    assert 1 not in hosts and 8 not in hosts and -1 not in hosts
