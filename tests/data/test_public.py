"""Public data: no client's rows, no labels, and the same for everybody."""

import hashlib
from dataclasses import fields

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.data import (
    DATASETS,
    PARTITIONERS,
    FederatedData,
    Partition,
    PublicData,
    RawData,
    load_federated_data,
    loading,
)
from fedsuite.data.diabetes130 import NUMBERS, VISITS
from fedsuite.data.splits import Parts, split_parts
from fedsuite.errors import ConfigError, DataError

from . import hospital_files
from . import parquet_files as files

HELD_OUT = {"client-test-fraction": 0.2, "server-validation-fraction": 0.1}


def raw_data(labels, num_train=None, groups=None):
    values = np.zeros((len(labels), 1), np.uint8)
    return RawData(values, labels, num_train=num_train, groups=groups)


def scattered_groups(num_groups=60, seed=0):
    """Groups of 1 to 4 rows, here and there in the table."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(np.arange(num_groups), rng.integers(1, 5, num_groups)))


def pixels(*tensors):
    """Return the rows of inputs as a set; digits are all different."""
    return {row.numpy().tobytes() for features in tensors for row in features}


# Which rows


@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=80).map(np.array),
    shares=st.tuples(st.floats(0, 0.45), st.floats(0, 0.45)),
    size=st.integers(1, 80),
    published=st.booleans(),
)
def test_public_rows_come_from_what_the_clients_would_train_on(
    labels, shares, size, published
):
    raw = raw_data(labels, (2 * len(labels) + 2) // 3 if published else None)
    before = split_parts(raw, 0.3, *shares)
    if size >= len(before.train):
        with pytest.raises(DataError, match=f"public-size = {size}: {len(before.train)} "):
            split_parts(raw, 0.3, *shares, public_size=size)
        return
    parts = split_parts(raw, 0.3, *shares, public_size=size)
    assert len(parts.public) == size
    assert sorted([*parts.train, *parts.public]) == before.train.tolist()
    assert (np.diff(parts.train) > 0).all()
    for name in ("client_test", "test", "validation"):
        assert np.array_equal(getattr(parts, name), getattr(before, name)), name
        assert not set(parts.public) & set(getattr(parts, name))


@pytest.mark.parametrize("groups", [None, scattered_groups()], ids=["rows", "groups"])
def test_fewer_public_rows_are_the_first_of_more(groups):
    num_rows = 150 if groups is None else len(groups)
    labels = np.arange(num_rows) % 3
    raw = raw_data(labels, num_rows, groups)
    most = split_parts(raw, 0.3, 0.2, 0.1, 60).public
    assert len(set(most)) == 60
    assert (np.diff(most) < 0).any(), "in the order of the draw"
    for size in range(61):
        drawn = split_parts(raw, 0.3, 0.2, 0.1, size).public
        assert np.array_equal(drawn, most[:size])


def test_public_rows_are_drawn_at_random_whatever_their_labels():
    """No first or last rows; the classes in about, not exactly, their proportions."""
    labels = np.arange(1000) % 2
    public = split_parts(raw_data(labels, 1000), 0.5, public_size=300).public
    assert public.mean() == pytest.approx(500, abs=60)
    assert len(set(np.diff(np.sort(public)).tolist())) > 5
    assert labels[public].sum() == pytest.approx(150, abs=35)
    permuted = np.random.default_rng(0).permutation(labels)
    again = split_parts(raw_data(permuted, 1000), 0.5, public_size=300).public
    assert np.array_equal(again, public)
    validation = split_parts(raw_data(labels, 1000), 0.5, 0, 0.3).validation
    assert not np.array_equal(np.sort(public), validation), "another draw"


@pytest.mark.parametrize("size", range(1, 100, 7))
def test_groups_are_never_public_and_private(size):
    groups = scattered_groups()
    raw = raw_data(np.zeros(len(groups), np.int64), groups=groups)
    before = split_parts(raw, 0.2, 0.2)
    parts = split_parts(raw, 0.2, 0.2, public_size=size)
    assert len(parts.public) == size
    private = np.concatenate([parts.train, parts.client_test, parts.test])
    assert not set(groups[parts.public]) & set(groups[private])
    # All groups but the last are whole, and what is left of that one is used by nobody.
    unused = set(before.train) - set(parts.train) - set(parts.public)
    assert set(groups[list(unused)]) <= {groups[parts.public[-1]]}
    assert len(unused) < 4


def test_some_unused_rows_there_are():
    """Otherwise the test above would not see what becomes of a torn group."""
    groups = scattered_groups()
    raw = raw_data(np.zeros(len(groups), np.int64), groups=groups)
    sizes = [split_parts(raw, 0.2, public_size=size) for size in range(1, 30)]
    used = {len(parts.train) + len(parts.public) for parts in sizes}
    assert len(used) > 1


def test_all_groups_public_leaves_nothing_for_the_clients():
    raw = raw_data(np.zeros(9, np.int64), 9, np.repeat([0, 1], [4, 5]))
    with pytest.raises(DataError, match="public-size = 6: 9 training rows are left"):
        split_parts(raw, 0.5, public_size=6)


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


# Images of one's own


@pytest.fixture
def own_images(tmp_path):
    """Write twelve images of Fashion-MNIST's form without labels; return folder, pixels."""
    spec = DATASETS["fashion-mnist"]
    images = files.random_pixels(spec, 12, seed=5)
    table = files.table(spec, images, np.zeros(12)).select([spec.image_column])
    files.write_split(tmp_path / "own", "images", table, shards=2)
    return tmp_path / "own", images


def fashion(tmp_path, **keys):
    spec = DATASETS["fashion-mnist"]
    if not (tmp_path / "data").exists():
        files.write_dataset(spec, tmp_path / "data")
    values = {"dataset": spec.name, "data-dir": str(tmp_path / "data"), "num-clients": 2}
    changes = {name.replace("_", "-"): value for name, value in keys.items()}
    return load_federated_data({**values, "scaling": "unit", **changes}, 0)


def test_own_images_leave_all_rows_to_the_clients(own_images, tmp_path):
    folder, images = own_images
    data = fashion(tmp_path, public_dir=str(folder))
    expected = images.astype(np.float32) / np.float32(255)
    assert np.array_equal(data.public_set().features.numpy(), expected)
    plain = fashion(tmp_path)
    assert data.fingerprint == plain.fingerprint
    assert data.description["train-rows"] == plain.description["train-rows"] == 12
    assert data.description["public-rows"] == 12
    assert data.description["public-rows-held-out"] == 0
    standard = fashion(tmp_path, public_dir=str(folder), scaling="standard")
    scaled = (expected - np.float32(0.2860)) / np.float32(0.3530)
    assert np.allclose(standard.public_set().features.numpy(), scaled, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "used", "count"), [(0, 0, 12), (0, 5, 5), (7, 0, 7), (7, 3, 3), (12, 12, 12)]
)
def test_the_first_own_images_are_taken(size, used, count, own_images, tmp_path):
    folder, images = own_images
    data = fashion(tmp_path, public_dir=str(folder), public_size=size, public_used=used)
    expected = images[:count].astype(np.float32) / np.float32(255)
    assert np.array_equal(data.public_set().features.numpy(), expected)


def test_labels_of_own_images_are_not_read(own_images, tmp_path):
    """They may be of any type, and out of range."""
    folder, images = own_images
    spec = DATASETS["fashion-mnist"]
    before = fashion(tmp_path, public_dir=str(folder)).public_set().fingerprint
    with_labels = tmp_path / "labelled"
    with_labels.mkdir()
    whole = files.table(spec, images, ["what"] * 12)
    pq.write_table(whole, with_labels / "all.parquet")
    after = fashion(tmp_path, public_dir=str(with_labels)).public_set().fingerprint
    assert after == before


def test_own_images_of_digits_have_the_range_of_the_digits(tmp_path):
    """Encoded images are brightest at 255, the digits' raw values at 16."""
    spec = DATASETS["digits"]
    images = files.random_pixels(spec, 6)
    images[0, 0, 0, :2] = (0, 255)
    files.write_split(tmp_path, "any", files.table(spec, images, np.zeros(6)))
    features = load_federated_data({"public-dir": str(tmp_path)}, 0).public_set().features
    assert features.dtype == torch.float32
    assert np.allclose(features.numpy(), images / np.float32(255), atol=1e-7)


def test_own_images_come_from_the_cache_without_warnings(
    own_images, tmp_path, recwarn, request
):
    folder, _ = own_images
    request.addfinalizer(lambda: torch.set_warn_always(False))
    torch.set_warn_always(True)
    first = fashion(tmp_path, public_dir=str(folder)).public_set()
    loading._divided.cache_clear()
    again = fashion(tmp_path, public_dir=str(folder)).public_set()
    assert again is not first and again.fingerprint == first.fingerprint
    assert not [w for w in recwarn if "writable" in str(w.message)]


# What cannot be


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"public-size": -1}, "public-size = -1: expected a whole number >= 0"),
        ({"public-used": 5}, "public-used = 5: expected at most public-size = 0"),
        (
            {"public-size": 5, "public-used": 6},
            "public-used = 6: expected at most public-size = 5",
        ),
        (
            {"dataset": "synthetic-ehr", "ehr-scale": 0.001, "public-dir": "x"},
            "public-dir = '.*x': dataset synthetic-ehr has no images; leave it empty",
        ),
    ],
)
def test_keys_that_do_not_fit(values, message):
    with pytest.raises(ConfigError, match=message):
        load_federated_data(values, 0)


def test_more_public_rows_than_there_are():
    message = "public-size = 1438: 1438 training rows are left to draw from"
    with pytest.raises(DataError, match=message):
        load_federated_data({"public-size": 1438}, 0)
    data = load_federated_data({"public-size": 1428, "num-clients": 10}, 0)
    assert [len(data.client(k).train) for k in range(10)] == [1] * 10


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"public_size": 13}, "key public-size = 13: folder .*own.* holds 12 images"),
        ({"public_used": 14}, "key public-used = 14: folder .*own.* holds 12 images"),
        (
            {"public_size": 5, "public_used": 6},
            "public-used = 6: expected at most public-size = 5",
        ),
    ],
)
def test_more_own_images_than_there_are(keys, message, own_images, tmp_path):
    with pytest.raises((ConfigError, DataError), match=message):
        fashion(tmp_path, public_dir=str(own_images[0]), **keys)


def test_folders_that_hold_no_such_images(own_images, tmp_path):
    def message(folder):
        with pytest.raises(DataError) as caught:
            fashion(tmp_path, public_dir=str(folder))
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith("key public-dir: ")
        return str(caught.value)

    assert f"folder {tmp_path}/typo does not exist" in message(tmp_path / "typo")
    (tmp_path / "empty").mkdir()
    assert f"no file *.parquet in {tmp_path}/empty" in message(tmp_path / "empty")
    spec = DATASETS["svhn"]
    large = files.table(spec, files.random_pixels(spec, 3), np.zeros(3))
    files.write_split(tmp_path / "large", "any", large)
    assert "row 0: image of 32x32, not 28x28" in message(tmp_path / "large")
    spec = DATASETS["cifar10"]
    other = files.table(spec, files.random_pixels(spec, 3), np.zeros(3))
    files.write_split(tmp_path / "other", "any", other)
    assert "no column 'image'; it has img" in message(tmp_path / "other")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.parquet").write_text("no")
    assert "not a readable Parquet file" in message(tmp_path / "broken")
