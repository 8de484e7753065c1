"""Small Parquet files in the layout of the Hugging Face hub."""

import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def random_pixels(spec, num_rows, seed=0):
    """Return uint8 images ``[rows, channels, height, width]``."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (num_rows, *spec.input_shape), dtype=np.uint8)


def encode(pixels):
    """Return one image ``[channels, height, width]`` as PNG bytes."""
    image = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()


def table(spec, pixels, labels, ids=None):
    """Return an Arrow table with the columns of ``spec``."""
    images = [{"bytes": encode(image), "path": None} for image in pixels]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        spec.image_column: pa.array(images, struct),
        spec.label_column: pa.array(labels),
        "of_no_interest": pa.array(["x"] * len(labels)),
    }
    if spec.id_column:
        columns[spec.id_column] = pa.array(ids)
    return pa.table(columns)


def write_split(folder, split, whole, shards=1, suffix=""):
    """Write a table as ``split-00000-of-0000N.parquet`` ..., in small row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, whole.num_rows, shards + 1).astype(int)
    for i, (first, last) in enumerate(pairwise(bounds)):
        name = f"{split}-{i:05d}-of-{shards:05d}{suffix}.parquet"
        pq.write_table(whole.slice(first, last - first), folder / name, row_group_size=5)


def labels_for(spec, num_rows, offset=0):
    """Return labels that reach the last class, of the column's type on the hub."""
    labels = (np.arange(num_rows) + offset) % spec.num_classes
    labels[0] = spec.num_classes - 1
    return labels.astype(bool) if spec.num_classes == 2 else labels


def owners_for(spec, num_rows):
    """Return owners as the hub has them: strings for writers, numbers for celebrities."""
    owners = np.arange(num_rows) // 4 + 10
    return [f"f{o:04d}_14" for o in owners] if spec.name == "femnist" else owners.tolist()


def write_dataset(spec, root, rows_per_split=12, shards=1):
    """Write all splits of ``spec`` under ``root``; return pixels, labels in file order."""
    pixels, labels = [], []
    for i, split in enumerate(spec.train_splits + spec.test_splits):
        images = random_pixels(spec, rows_per_split, seed=i)
        classes = labels_for(spec, rows_per_split, offset=i)
        owners = owners_for(spec, rows_per_split)
        write_split(root / spec.folder, split, table(spec, images, classes, owners), shards)
        pixels.append(images)
        labels.append(classes.astype(np.int64))
    return np.concatenate(pixels), np.concatenate(labels)
