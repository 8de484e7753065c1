"""Images of one's own as public data."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data import DATASETS, load_federated_data, loading

from . import parquet_files as files

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
    ("keys", "message"),
    [
        ({"public_size": 13}, "key public-size = 13: folder .*own.* holds 12 images"),
        ({"public_used": 14}, "key public-used = 14: folder .*own.* holds 12 images"),
        (
            {"public_size": 5, "public_used": 6},
            "public-used = 6 cannot go with public-size = 5",
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
