"""Public data: no client's rows, no labels, and the same for everybody."""

import hashlib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data import (
    DATASETS,
    PARTITIONERS,
    FederatedData,
    Partition,
    PublicData,
    RawData,
    load_federated_data,
)
from fedsuite.data.diabetes130 import NUMBERS, VISITS
from fedsuite.data.public import read_public_folder
from fedsuite.data.splits import Parts

from . import hospital_files
from . import parquet_files as files

HELD_OUT = {"client-test-fraction": 0.2, "server-validation-fraction": 0.1}


def pixels(*tensors):
    """Return the rows of inputs as a set; digits are all different."""
    return {row.numpy().tobytes() for features in tensors for row in features}


# In an experiment


@pytest.mark.parametrize("name", [n for n in PARTITIONERS if n != "natural-id"])
@pytest.mark.parametrize("held_out", [{}, HELD_OUT], ids=["plain", "held-out"])
def test_no_client_and_no_test_has_a_public_row(name, held_out):
    values = {"partitioner": name, "dirichlet-min-size": 2, **held_out}
    without = load_federated_data(values, 0)
    data = load_federated_data({**values, "public-size": 200}, 0)
    public = pixels(data.public_set().features)
    assert len(public) == len(data.public_set()) == 200
    clients = [data.client(k) for k in range(10)]
    held = pixels(*(s.features for c in clients for s in (c.train, c.test)))
    apart = (held, pixels(data.test_set().features, data.validation_set().features))
    assert all(not public & rows for rows in apart)
    everything = pixels(torch.from_numpy(data._raw.features) / 16)
    assert public | set().union(*apart) <= everything
    for part in ("test_set", "validation_set"):
        assert torch.equal(
            getattr(data, part)().features, getattr(without, part)().features
        )


def test_all_training_rows_are_public_or_private():
    """As a set by pixels, the private rows of a smaller set contain those of a larger."""
    plain = load_federated_data({"num-clients": 1}, 0).client(0).train.features
    seen = []
    for size in (100, 200, 400):
        data = load_federated_data({"num-clients": 1, "public-size": size}, 0)
        public, private = data.public_set().features, data.client(0).train.features
        assert len(public) + len(private) == len(plain)
        assert pixels(public, private) == pixels(plain)
        seen.append(public)
    assert torch.equal(seen[0], seen[2][:100]) and torch.equal(seen[1], seen[2][:200])


def test_the_same_for_all_seeds_and_partitions():
    base = load_federated_data({"public-size": 50}, 0)
    for seed, changes in ((1, {}), (0, {"num-clients": 3}), (2, {"partitioner": "shards"})):
        data = load_federated_data({"public-size": 50, **changes}, seed)
        assert torch.equal(data.public_set().features, base.public_set().features)
        assert data.public_set().fingerprint == base.public_set().fingerprint
        assert data.fingerprint != base.fingerprint


def test_fewer_are_used_on_the_same_private_rows():
    values = {"public-size": 100, "partitioner": "dirichlet"}
    whole = load_federated_data(values, 0)
    part = load_federated_data({**values, "public-used": 30}, 0)
    assert torch.equal(part.public_set().features, whole.public_set().features[:30])
    assert part.public_set().fingerprint != whole.public_set().fingerprint
    assert part.fingerprint == whole.fingerprint
    assert torch.equal(part.client(3).train.features, whole.client(3).train.features)
    smaller = load_federated_data({**values, "public-size": 30}, 0)
    assert smaller.public_set().fingerprint == part.public_set().fingerprint
    assert smaller.fingerprint != part.fingerprint


def test_scaled_as_private_rows_are(tmp_path):
    """A row has the same bits whether it is public or a client's."""
    spec = DATASETS["cifar10"]
    files.write_dataset(spec, tmp_path)
    values = {"dataset": "cifar10", "data-dir": str(tmp_path), "num-clients": 1}
    private = load_federated_data(values, 0).client(0).train.features
    data = load_federated_data({**values, "public-size": 5}, 0)
    assert pixels(data.public_set().features) < pixels(private)
    assert data.public_set().features.dtype == torch.float32
    unit = load_federated_data({**values, "public-size": 5, "scaling": "unit"}, 0)
    assert 0 <= unit.public_set().features.min() < unit.public_set().features.max() <= 1
    assert unit.public_set().fingerprint != data.public_set().fingerprint


def test_labels_play_no_part(tmp_path):
    """T11: with the labels of all rows exchanged the public set has the same bits."""
    spec = DATASETS["mnist"]
    found = []
    for folder, shift in (("true", 0), ("exchanged", 3)):
        for split in ("train", "test"):
            labels = np.roll(np.arange(12) % 10, shift)
            table = files.table(spec, files.random_pixels(spec, 12), labels)
            files.write_split(tmp_path / folder / spec.folder, split, table)
        values = {"dataset": "mnist", "data-dir": str(tmp_path / folder)}
        found.append(load_federated_data({**values, "num-clients": 1, "public-size": 4}, 0))
    true, exchanged = found
    assert true.client(0).train.labels.tolist() != exchanged.client(0).train.labels.tolist()
    assert torch.equal(true.public_set().features, exchanged.public_set().features)
    assert true.public_set().fingerprint == exchanged.public_set().fingerprint


def test_there_are_no_labels_to_be_had():
    assert [field.name for field in fields(PublicData)] == ["features"]


def test_patients_are_not_torn(tmp_path):
    """Encounters are standardised on the private rows alone."""
    hospital_files.write_encounters(tmp_path)
    values = {
        "dataset": "diabetes130",
        "data-dir": str(tmp_path),
        "num-clients": 2,
        "public-size": 9,
    }
    data = load_federated_data(values, 0)
    patients = data._raw.groups
    rows = data._rows
    assert len(rows.public) == 9
    private = np.concatenate([rows.train, rows.client_test])
    assert not set(patients[rows.public]) & set(patients[private])
    train = torch.cat([data.client(k).train.features for k in range(2)])
    numbers = 1 + len(NUMBERS) + len(VISITS)
    assert train[:, :numbers].mean(dim=0).abs().max() < 1e-5
    assert data.public_set().features[:, :numbers].mean(dim=0).abs().max() > 1e-2


# Fingerprints


@pytest.mark.parametrize(
    ("values", "fingerprint"),
    [
        ({}, "a368cca1c6f342b21880320e4b8c492c2a61d3bb496fe6d50f3bc76f84f10f4c"),
        (HELD_OUT, "a255c86c17b3654537ee2364e6c48f2c8bc31990f36f17216f7ab84413551e67"),
    ],
)
def test_without_public_data_the_recorded_fingerprints_stay(values, fingerprint):
    """Results on record carry them."""
    data = load_federated_data(values, 0)
    assert data.fingerprint == fingerprint
    assert len(data.public_set()) == 0
    assert data.public_set().features.shape == (0, 1, 8, 8)
    assert not any(name.startswith("public") for name in data.description)


def test_fingerprint_of_public_data_by_hand():
    features = torch.tensor([[1.0, -2.0], [0.5, 0.0], [3.0, 4.0]])
    content = b"(3, 2);<f4;" + features.numpy().astype("<f4").tobytes()
    assert PublicData(features).fingerprint == hashlib.sha256(content).hexdigest()
    others = [
        features,
        features.reshape(2, 3),
        features.flip(0),
        features + torch.tensor([0.0, 1e-6]),
        features[:2],
    ]
    assert len({PublicData(other).fingerprint for other in others}) == 5
    assert PublicData(features.clone()).fingerprint == PublicData(features).fingerprint


def test_fingerprint_of_the_partition_sees_which_rows_are_public():
    spec, rows = DATASETS["digits"], np.arange(8)
    raw = RawData(np.zeros((8, 1, 8, 8), np.uint8), np.zeros(8, np.int64))
    partition = Partition((np.arange(2),), (np.arange(2),))

    def fingerprint(public, train=(0, 1)):
        parts = Parts(rows[list(train)], rows[2:4], rows[2:4], rows[:0], rows[list(public)])
        return FederatedData(spec, raw, parts, partition, "unit", "iid").fingerprint

    prints = {fingerprint(public) for public in ((4, 5), (5, 4), (4, 6), (4,))}
    assert len(prints | {fingerprint((4, 5), train=(0, 7))}) == 5


def test_description_counts_public_rows():
    description = load_federated_data({"public-size": 60, "public-used": 20}, 0).description
    assert description["public-rows"] == 20
    assert description["public-rows-held-out"] == 60
    assert description["train-rows"] == 1438 - 60
    assert len(description["public-fingerprint"]) == 64


# What cannot be


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"public-size": -1}, "public-size = -1: expected a whole number >= 0"),
        ({"public-used": 5}, "public-used = 5 cannot go with public-size = 0"),
        (
            {"public-size": 5, "public-used": 6},
            "public-used = 6 cannot go with public-size = 5",
        ),
    ],
)
def test_keys_that_do_not_fit(values, message):
    with pytest.raises(ConfigError, match=message):
        load_federated_data(values, 0)


def test_a_folder_of_images_for_a_table():
    with pytest.raises(ConfigError, match="'x': dataset heart-disease has no images"):
        read_public_folder(DATASETS["heart-disease"], Path("x"))


def test_more_public_rows_than_there_are():
    message = "public-size = 1438: 1438 training rows are left to draw from"
    with pytest.raises(DataError, match=message):
        load_federated_data({"public-size": 1438}, 0)
    data = load_federated_data({"public-size": 1428, "num-clients": 10}, 0)
    assert [len(data.client(k).train) for k in range(10)] == [1] * 10
