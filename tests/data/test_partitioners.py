import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets import FederatedDataset

from fedsuite.data import partitioners as ours
from fedsuite.errors import DataError

LABELS = np.arange(600) % 10
COLUMNS = {"label": LABELS, "writer": [f"w{i % 24}" for i in range(600)], "row": range(600)}

ALL = [
    (ours.IidPartitioner, {}),
    (ours.ShardPartitioner, {"shards_per_client": 2}),
    (ours.DirichletPartitioner, {"alpha": 0.5, "min_size": 5}),
    (ours.ClientDirichletPartitioner, {"alpha": 1.0}),
    (ours.PathologicalPartitioner, {"classes_per_client": 2}),
    (ours.PowerLawPartitioner, {"exponent": 1.0}),
    (ours.ClassCountPartitioner, {}),
    (ours.NaturalIdPartitioner, {"partition_by": "writer", "min_size": 2}),
    (ours.NaturalIdPartitioner, {"partition_by": "writer", "natural_ids": "sample"}),
]


@pytest.mark.parametrize(("kind", "options"), ALL)
def test_works_on_a_dataset(kind, options):
    partitioner = kind(num_partitions=6, seed=1, **options)
    assert partitioner.num_partitions == 6
    partitioner.dataset = Dataset.from_dict(COLUMNS)
    rows = [partitioner.load_partition(k)["row"][:] for k in range(6)]
    used = [r for part in rows for r in part]
    assert len(used) == len(set(used))
    if kind is not ours.ClassCountPartitioner and options.get("natural_ids") != "sample":
        assert len(used) == 600


@pytest.mark.parametrize(("kind", "options"), ALL)
def test_same_mix_on_a_test_split(kind, options):
    train = kind(num_partitions=6, seed=1, **options)
    test = ours.SameMixPartitioner(train)
    train.dataset = Dataset.from_dict(COLUMNS)
    test.dataset = Dataset.from_dict({name: list(c)[:240] for name, c in COLUMNS.items()})
    assert test.num_partitions == 6
    for k in range(6):
        mine, tested = train.load_partition(k), test.load_partition(k)
        column = train.partition_by
        assert len(tested) > 0
        assert set(tested[column][:]) <= set(mine[column][:])
        assert len(tested) == pytest.approx(len(mine) * 0.4, abs=6)


def test_in_a_federated_dataset(tmp_path):
    file = tmp_path / "rows.parquet"
    Dataset.from_dict(COLUMNS).to_parquet(file)
    train = ours.ShardPartitioner(num_partitions=10, shards_per_client=2)
    data = FederatedDataset(
        dataset="parquet",
        data_files={"train": str(file), "test": str(file)},
        partitioners={"train": train, "test": ours.SameMixPartitioner(train)},
        cache_dir=str(tmp_path / "hf"),
    )
    labels = data.load_partition(3, "train")["label"][:]
    assert len(labels) == 60 and len(set(labels)) <= 2
    assert sorted(data.load_partition(3, "test")["label"][:]) == sorted(labels)


def test_same_mix_needs_the_training_split_first():
    test = ours.SameMixPartitioner(ours.IidPartitioner(2))
    test.dataset = Dataset.from_dict(COLUMNS)
    with pytest.raises(DataError, match="load a training partition before"):
        test.load_partition(0)


def test_same_mix_refuses_owners_that_only_the_test_split_has():
    train = ours.NaturalIdPartitioner(6, partition_by="writer")
    test = ours.SameMixPartitioner(train)
    train.dataset = Dataset.from_dict(COLUMNS)
    test.dataset = Dataset.from_dict({"writer": [f"v{i}" for i in range(60)]})
    with pytest.raises(DataError, match="other owners"):
        test.load_partition(0)


def test_column_that_is_not_there():
    partitioner = ours.IidPartitioner(2, partition_by="class")
    partitioner.dataset = Dataset.from_dict(COLUMNS)
    with pytest.raises(
        DataError, match="no column 'class'; the data set has label, writer"
    ):
        partitioner.load_partition(0)


def test_impossible_partition_is_our_error():
    partitioner = ours.IidPartitioner(601)
    partitioner.dataset = Dataset.from_dict(COLUMNS)
    with pytest.raises(DataError, match="num-clients = 601: expected 1 to 600"):
        partitioner.load_partition(0)
