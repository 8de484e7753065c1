import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsuite.core.errors import DataError
from fedsuite.data import DATASETS, cache, parquet

from . import parquet_files as files

STORED = [spec for spec in DATASETS.values() if spec.hub_id]
MNIST = DATASETS["mnist"]


@pytest.fixture(autouse=True)
def no_hub(tmp_path, monkeypatch):
    """Stand in for the hub with a local folder, empty unless the test fills it."""
    import datasets

    monkeypatch.setattr(parquet, "HUB", f"{tmp_path}/hub/")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("spec", STORED, ids=lambda s: s.name)
def test_every_data_set_loads_from_its_folder(spec, shards, tmp_path):
    pixels, labels = files.write_dataset(spec, tmp_path, shards=shards)
    raw = spec.source().load(spec, tmp_path)
    assert np.array_equal(raw.features, pixels)
    assert np.array_equal(raw.labels, labels)
    assert raw.labels.dtype == np.int64 and raw.features.dtype == np.uint8
    assert raw.num_train == (12 if spec.test_splits else None)
    splits = len(spec.train_splits + spec.test_splits)
    if spec.id_column:
        assert raw.ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2] * splits
    else:
        assert raw.ids is None


@pytest.mark.parametrize("spec", STORED, ids=lambda s: s.name)
def test_every_data_set_loads_from_the_hub(spec, tmp_path):
    flat = tmp_path / "flat"
    pixels, labels = files.write_dataset(spec, flat, shards=2)
    (tmp_path / "hub" / spec.hub_id).mkdir(parents=True)
    (flat / spec.folder).rename(tmp_path / "hub" / spec.hub_id / spec.hub_folder)
    raw = spec.source().load(spec, None)
    assert np.array_equal(raw.features, pixels)
    assert np.array_equal(raw.labels, labels)
    assert (raw.ids is not None) == bool(spec.id_column)
    (tmp_path / "hub").rename(tmp_path / "gone")
    again = spec.source().load(spec, tmp_path / "no such folder")  # from the cache
    assert np.array_equal(again.features, pixels)


def test_clone_of_the_hub_repository(tmp_path):
    """A clone holds the files one folder further down, some with a hash in their name."""
    spec = DATASETS["tiny-imagenet"]
    pixels = files.random_pixels(spec, 4)
    whole = files.table(spec, pixels, [0, 1, 2, 199])
    folder = tmp_path / "tiny_imagenet" / "data"
    files.write_split(folder, "train", whole, suffix="-1359597a978bc4fa")
    files.write_split(folder, "valid", whole, suffix="-70d52db3c749a935")
    raw = spec.source().load(spec, tmp_path)
    assert raw.num_train == 4 and np.array_equal(raw.features[4:], pixels)


def test_shards_come_in_order_and_extra_files_are_left_alone(tmp_path):
    pixels, _ = files.write_dataset(MNIST, tmp_path, shards=3)
    (tmp_path / "mnist" / "extra-00000-of-00001.parquet").write_bytes(b"not read")
    assert np.array_equal(MNIST.source().load(MNIST, tmp_path).features, pixels)


def test_grey_images_of_a_colour_set_and_large_images_of_celeba(tmp_path):
    grey = files.random_pixels(MNIST, 4)
    small = DATASETS["tiny-imagenet"]
    image = np.repeat(np.repeat(grey, 3, axis=2), 3, axis=3)[:, :, :64, :64]
    folder = tmp_path / small.folder
    for split in ("train", "valid"):
        files.write_split(folder, split, files.table(small, image, [0, 1, 2, 3]))
    raw = small.source().load(small, tmp_path)
    assert np.array_equal(raw.features[:4], np.repeat(image, 3, axis=1))

    celeba = DATASETS["celeba"]
    flat = np.full((2, 3, 218, 178), 77, np.uint8)
    for split in celeba.train_splits:
        table = files.table(celeba, flat, [True, False], [5, 5])
        files.write_split(tmp_path / "celeba", split, table)
    raw = celeba.source().load(celeba, tmp_path)
    assert raw.features.shape == (6, 3, 84, 84) and (raw.features == 77).all()


def count_decoded(monkeypatch):
    decoded = []
    decode = parquet.decode
    monkeypatch.setattr(
        parquet, "decode", lambda *a, **k: decoded.append(1) or decode(*a, **k)
    )
    return decoded


def test_images_are_decoded_once(tmp_path, monkeypatch):
    files.write_dataset(MNIST, tmp_path)
    decoded = count_decoded(monkeypatch)
    MNIST.source().load(MNIST, tmp_path)
    MNIST.source().load(MNIST, tmp_path)
    assert len(decoded) == 24


def test_changed_file_is_decoded_again(tmp_path, monkeypatch):
    files.write_dataset(MNIST, tmp_path)
    decoded = count_decoded(monkeypatch)
    MNIST.source().load(MNIST, tmp_path)
    file = tmp_path / "mnist" / "test-00000-of-00001.parquet"
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    MNIST.source().load(MNIST, tmp_path)
    assert len(decoded) == 48
    other = files.random_pixels(MNIST, 5, seed=9)
    files.write_split(tmp_path / "mnist", "test", files.table(MNIST, other, [0] * 5))
    assert np.array_equal(MNIST.source().load(MNIST, tmp_path).features[12:], other)


def test_equal_names_in_two_folders_are_two_entries(tmp_path):
    files.write_dataset(MNIST, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # sizes and times are the same
    MNIST.source().load(MNIST, tmp_path / "a")
    MNIST.source().load(MNIST, tmp_path / "b")
    assert len(list(cache.cache_folder().glob("mnist-*/"))) == 2


@pytest.mark.parametrize("spec", STORED, ids=lambda s: s.name)
def test_neither_folder_nor_hub_says_what_to_put_where(spec, tmp_path):
    with pytest.raises(DataError) as error:
        spec.source().load(spec, tmp_path)
    text = str(error.value)
    assert "\n" not in text
    for part in (
        *spec.file_patterns,
        f"FOLDER/{spec.folder}",
        spec.hub_id,
        "FEDSUITE_DATA",
    ):
        assert part in text


def broken(tmp_path, message, **change):
    """Write MNIST with one thing wrong, and check the error's text."""
    columns = {
        "image": [
            {"bytes": files.encode(p), "path": None} for p in files.random_pixels(MNIST, 8)
        ],
        "label": list(range(8)),
    }
    columns.update(change)
    table = pa.table(
        {name: values for name, values in columns.items() if values is not None}
    )
    files.write_split(tmp_path / "mnist", "train", table)
    files.write_split(tmp_path / "mnist", "test", table)
    with pytest.raises(DataError, match=message) as error:
        MNIST.source().load(MNIST, tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "mnist" / "train-00000-of-00001.parquet") in str(error.value)


def image(content):
    good = {"bytes": files.encode(files.random_pixels(MNIST, 1)[0]), "path": None}
    return [good] * 6 + [{"bytes": content, "path": None}, good]


def test_missing_columns(tmp_path):
    broken(tmp_path, "no column 'label'; it has image", label=None)
    broken(
        tmp_path, "no column 'image'; it has label, picture", image=None, picture=[1] * 8
    )


def test_labels_that_cannot_be(tmp_path):
    broken(tmp_path, "row 6: label 10 is outside 0 to 9", label=[0, 1, 2, 3, 4, 5, 10, 7])
    broken(tmp_path, "row 7: label -1 is outside", label=[0, 1, 2, 3, 4, 5, 6, -1])
    broken(tmp_path, "'label' has 1 missing", label=[0, 1, 2, None, 4, 5, 6, 7])
    broken(tmp_path, "holds double, not whole numbers", label=[0.5] * 8)


def test_images_that_cannot_be(tmp_path):
    broken(tmp_path, "row 6: not a readable image", image=image(b"\x89PNG\r\n\x1a\nshort"))
    broken(tmp_path, "row 6: not a readable image", image=image(b""))
    broken(tmp_path, "row 6: no image bytes", image=image(None))
    small = files.encode(np.zeros((1, 8, 9), np.uint8))
    broken(tmp_path, "row 6: image of 9x8, not 28x28", image=image(small))
    broken(tmp_path, "not a struct with the images' bytes", image=[b"x"] * 8)
    broken(
        tmp_path,
        "'image' has 1 missing",
        image=[None, *image(small)[:5], *[image(small)[0]] * 2],
    )


def test_corrupt_file(tmp_path):
    files.write_dataset(MNIST, tmp_path)
    file = tmp_path / "mnist" / "test-00000-of-00001.parquet"
    content = file.read_bytes()
    file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="not a readable Parquet file") as error:
        MNIST.source().load(MNIST, tmp_path)
    assert str(file) in str(error.value) and "\n" not in str(error.value)
    middle = len(content) // 3
    file.write_bytes(content[:middle] + b"\xff" * 400 + content[middle + 400 :])
    with pytest.raises(DataError) as error:
        MNIST.source().load(MNIST, tmp_path)
    assert str(file) in str(error.value)


def test_missing_split_and_missing_shard(tmp_path):
    files.write_dataset(MNIST, tmp_path, shards=3)
    (tmp_path / "mnist" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(DataError, match="should hold shards 0 to 2 of 3"):
        MNIST.source().load(MNIST, tmp_path)
    for file in (tmp_path / "mnist").glob("train-*"):
        file.unlink()
    with pytest.raises(
        DataError, match=r"no file train-\*\.parquet in .*mnist; put train-"
    ):
        MNIST.source().load(MNIST, tmp_path)


def test_files_without_rows(tmp_path):
    empty = files.table(MNIST, files.random_pixels(MNIST, 1), [0]).slice(0, 0)
    for split in ("train", "test"):
        folder = tmp_path / "mnist"
        folder.mkdir(exist_ok=True)
        pq.write_table(empty, folder / f"{split}-00000-of-00001.parquet")
    with pytest.raises(DataError, match="hold no rows"):
        MNIST.source().load(MNIST, tmp_path)


def test_damaged_cache_is_decoded_again(tmp_path):
    pixels, _ = files.write_dataset(MNIST, tmp_path)
    MNIST.source().load(MNIST, tmp_path)
    (stored,) = cache.cache_folder().glob("mnist-*/features.npy")
    stored.write_bytes(stored.read_bytes()[:-100] + bytes(100))
    assert np.array_equal(MNIST.source().load(MNIST, tmp_path).features, pixels)
