import io
import subprocess

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Features, Image, Value
from flwr_datasets import FederatedDataset

from fedsuite.core.errors import DataError
from fedsuite.data import (
    ClassCount,
    CovariateShift,
    Dirichlet,
    DirichletClient,
    FirstComponent,
    Iid,
    NaturalId,
    Pathological,
    PowerLaw,
    PrintedShift,
    SameMixPartitioner,
    Shards,
    SuitePartitioner,
)
from fedsuite.data import partitioners as ours

LABELS = np.arange(600) % 10
COLUMNS = {"label": LABELS, "writer": [f"w{i % 24}" for i in range(600)], "row": range(600)}

ALL = [
    (Iid(), "label"),
    (Shards(), "label"),
    (Dirichlet(dirichlet_min_size=5), "label"),
    (DirichletClient(), "label"),
    (Pathological(), "label"),
    (PowerLaw(), "label"),
    (ClassCount(), "label"),
    (NaturalId(natural_min_size=2), "writer"),
    (NaturalId(natural_ids="sample"), "writer"),
]


@pytest.mark.parametrize(("division", "column"), ALL)
def test_works_on_a_dataset(division, column):
    partitioner = SuitePartitioner(division, 6, column, seed=1)
    assert partitioner.num_partitions == 6
    partitioner.dataset = Dataset.from_dict(COLUMNS)
    rows = [partitioner.load_partition(k)["row"][:] for k in range(6)]
    used = [r for part in rows for r in part]
    assert len(used) == len(set(used))
    if division not in (ClassCount(), NaturalId(natural_ids="sample")):
        assert len(used) == 600


@pytest.mark.parametrize(("division", "column"), ALL)
def test_same_mix_on_a_test_split(division, column):
    train = SuitePartitioner(division, 6, column, seed=1)
    test = SameMixPartitioner(train)
    train.dataset = Dataset.from_dict(COLUMNS)
    test.dataset = Dataset.from_dict({name: list(c)[:240] for name, c in COLUMNS.items()})
    assert test.num_partitions == 6
    for k in range(6):
        mine, tested = train.load_partition(k), test.load_partition(k)
        assert len(tested) > 0
        assert set(tested[column][:]) <= set(mine[column][:])
        assert len(tested) == pytest.approx(len(mine) * 0.4, abs=6)


def test_in_a_federated_dataset(tmp_path):
    file = tmp_path / "rows.parquet"
    Dataset.from_dict(COLUMNS).to_parquet(file)
    train = SuitePartitioner(Shards(), 10, "label")
    data = FederatedDataset(
        dataset="parquet",
        data_files={"train": str(file), "test": str(file)},
        partitioners={"train": train, "test": SameMixPartitioner(train)},
        cache_dir=str(tmp_path / "hf"),
    )
    labels = data.load_partition(3, "train")["label"][:]
    assert len(labels) == 60 and len(set(labels)) <= 2
    assert sorted(data.load_partition(3, "test")["label"][:]) == sorted(labels)


def test_same_mix_needs_the_training_split_first():
    test = SameMixPartitioner(SuitePartitioner(Iid(), 2, "label"))
    test.dataset = Dataset.from_dict(COLUMNS)
    with pytest.raises(DataError, match="load a training partition before"):
        test.load_partition(0)


def test_same_mix_refuses_owners_that_only_the_test_split_has():
    train = SuitePartitioner(NaturalId(), 6, "writer")
    test = SameMixPartitioner(train)
    train.dataset = Dataset.from_dict(COLUMNS)
    test.dataset = Dataset.from_dict({"writer": [f"v{i}" for i in range(60)]})
    with pytest.raises(DataError, match="other owners"):
        test.load_partition(0)


def test_column_that_is_not_there():
    partitioner = SuitePartitioner(Iid(), 2, "class")
    partitioner.dataset = Dataset.from_dict(COLUMNS)
    with pytest.raises(
        DataError, match="no column 'class'; the data set has label, writer"
    ):
        partitioner.load_partition(0)


def test_impossible_partition_is_our_error():
    partitioner = SuitePartitioner(Iid(), 601, "label")
    partitioner.dataset = Dataset.from_dict(COLUMNS)
    with pytest.raises(DataError, match="num-clients = 601: expected 1 to 600"):
        partitioner.load_partition(0)


SHIFTED = [CovariateShift, PrintedShift, FirstComponent]


def shiftable(rows, with_image=True):
    """Rows of two numbers and an image of four pixels that say the same."""
    rng = np.random.default_rng(rows)
    numbers = rng.normal(size=(rows, 2)) * [1, 5]
    columns = {"label": rng.integers(0, 3, rows), "x": numbers[:, 0], "y": numbers[:, 1]}
    pixels = np.clip(numbers[:, [0, 1, 0, 1]] * 10 + 128, 0, 255).astype(np.uint8)
    if not with_image:
        return Dataset.from_dict(columns)
    images = [{"bytes": encoded(p.reshape(2, 2)), "path": None} for p in pixels]
    kinds = {"label": Value("int64"), "x": Value("float64"), "y": Value("float64")}
    features = Features({**kinds, "image": Image(mode="L")})
    return Dataset.from_dict({**columns, "image": images}, features=features)


def encoded(pixels):
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def test_pictures_are_read_as_datasets_reads_them():
    rows = shiftable(20)
    column = SuitePartitioner(CovariateShift(), 2, "label")._read(rows, "image")
    theirs = rows.with_format("numpy")["image"][:]
    assert column.dtype == np.uint8 and np.array_equal(column, theirs)


def test_a_picture_that_begins_like_postscript_starts_no_program(monkeypatch):
    """The library ``datasets`` would hand it to Pillow, and Pillow to Ghostscript."""

    programs = []

    def started(*words, **options):
        programs.append(words)
        raise OSError("no program is started here")

    for name in ("Popen", "run", "call", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, name, started)
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n%%EndComments\nshowpage\n"
    images = [{"bytes": page, "path": None}] * 4
    features = Features({"label": Value("int64"), "image": Image()})
    data = Dataset.from_dict({"label": [0, 1, 0, 1], "image": images}, features=features)
    train = SuitePartitioner(SHIFTED[0](shift_dimensions=1), 2, "label")
    train.dataset = data
    with pytest.raises(DataError, match="not a readable image"):
        train.load_partition(0)
    assert not programs


@pytest.mark.parametrize("kind", SHIFTED)
@pytest.mark.parametrize("features", [("x", "y"), ("image",), "image"])
def test_shifts_of_numbers_and_of_images(kind, features):
    division = kind(shift_dimensions=2, data_fraction=0.5)
    train = SuitePartitioner(division, 3, "label", seed=2, features=features)
    test = SameMixPartitioner(train)
    train.dataset, test.dataset = shiftable(2000), shiftable(400)
    assert [len(train.load_partition(k)) for k in range(3)] == [546, 273, 181]
    assert [len(test.load_partition(k)) for k in range(3)] == [110, 54, 36]
    for client, shift in enumerate(train.shifts):
        held = train.load_partition(client).with_format("numpy")
        inputs = np.column_stack([held["x"][:], held["y"][:]])
        pool = train.dataset.with_format("numpy")
        pool = np.column_stack([pool["x"][:], pool["y"][:]])
        away = inputs.mean(axis=0) - pool.mean(axis=0)
        reached = away @ np.linalg.inv(np.cov(pool, rowvar=False)) @ away
        # Pixels are rounded and clipped: as much as they can say.
        exact = features == ("x", "y")
        assert shift.squared_shift == pytest.approx(reached, rel=1e-2 if exact else 0.2)


def test_test_rows_are_shifted_as_the_training_rows():
    division = CovariateShift(shift_dimensions=2, squared_shift=2.0, power_law_exponent=0.0)
    train = SuitePartitioner(division, 4, "label", features=("x", "y"))
    test = SameMixPartitioner(train)
    train.dataset = shiftable(8000, with_image=False)
    test.dataset = shiftable(4000, with_image=False)
    for client in range(4):
        means = [
            np.array([np.mean(part["x"][:]), np.mean(part["y"][:]) / 5])
            for part in (train.load_partition(client), test.load_partition(client))
        ]
        assert np.linalg.norm(means[0]) == pytest.approx(2**0.5, rel=0.15)
        assert np.linalg.norm(means[0] - means[1]) < 0.3


def test_options_of_shifts_reach_the_generator():
    def rows(seed=0, **options):
        division = CovariateShift(shift_dimensions=2, **options)
        partitioner = SuitePartitioner(division, 2, "label", seed, ("x", "y"))
        partitioner.dataset = shiftable(500, with_image=False)
        return [part.tolist() for part in partitioner.indices]

    base = rows()
    assert base == rows(
        seed=0, squared_shift=5.0, shift_replacement=True, power_law_exponent=1.0
    )
    changes = (
        *({"seed": 1}, {"squared_shift": 1.0}, {"shift_replacement": False}),
        *({"power_law_exponent": 0.5}, {"data_fraction": 0.9}),
    )
    assert all(rows(**change) != base for change in changes)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (("x", "z"), "no column 'z'; the data set has label, x, y"),
        (("words",), "column 'words' holds no numbers of one shape"),
        (("ragged",), "column 'ragged' holds no numbers of one shape"),
    ],
)
def test_columns_that_are_no_inputs(features, message):
    partitioner = SuitePartitioner(
        CovariateShift(shift_dimensions=1), 2, "label", features=features
    )
    columns = {"label": [0, 1, 0], "x": [0.0, 1, 2], "y": [1.0, 2, 3]}
    columns |= {"words": ["a", "b", "c"], "ragged": [[1], [1, 2], [3]]}
    if "z" in features:
        columns = {name: columns[name] for name in ("label", "x", "y")}
    partitioner.dataset = Dataset.from_dict(columns)
    with pytest.raises(DataError, match=message):
        partitioner.load_partition(0)


def test_partitioners_are_found_in_the_package():
    import fedsuite.data

    classes = [kind for kind in vars(ours).values() if isinstance(kind, type)]
    own = [kind.__name__ for kind in classes if kind.__module__ == ours.__name__]
    for name in own:
        assert getattr(fedsuite.data, name) is getattr(ours, name)
        assert name in dir(fedsuite.data)
    with pytest.raises(AttributeError, match="NoPartitioner"):
        fedsuite.data.NoPartitioner  # noqa: B018
