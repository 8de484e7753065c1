"""The data sets and partitioners that fedsuite knows.

Means and standard deviations of ``mnist``, ``fashion-mnist`` and ``cifar10`` were
recomputed from the training files and agree with the published ones; the others are
the published values, not recomputed here.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from fedsuite.core.errors import ConfigError
from fedsuite.core.plug_ins import Registry
from fedsuite.data import (
    covariate_shift,
    diabetes130,
    heart_disease,
    partition,
    reddit,
    tcga_brca,
)
from fedsuite.data.digits import Digits
from fedsuite.data.division import Division
from fedsuite.data.own_pictures import OwnPictures
from fedsuite.data.own_rows import OwnRows
from fedsuite.data.own_table import OwnTable
from fedsuite.data.parquet import Parquet
from fedsuite.data.specs import DatasetSpec

_images = partial(DatasetSpec, source=Parquet)

_SPECS = (
    DatasetSpec(
        name="digits",
        description="handwritten digits 8x8 grey, 1,797 rows, part of scikit-learn",
        num_classes=10,
        input_shape=(1, 8, 8),
        source=Digits,
        mean=(0.0,),
        std=(1.0,),
        max_value=16,
        test_splits=(),
    ),
    _images(
        name="fashion-mnist",
        description="clothes 28x28 grey, 60,000 / 10,000 rows",
        num_classes=10,
        class_names=(
            *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
            *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
        input_shape=(1, 28, 28),
        mean=(0.2860,),
        std=(0.3530,),
        hub_id="zalando-datasets/fashion_mnist",
        hub_folder="fashion_mnist",
        folder="fashion_mnist",
    ),
    _images(
        name="mnist",
        description="handwritten digits 28x28 grey, 60,000 / 10,000 rows",
        num_classes=10,
        input_shape=(1, 28, 28),
        mean=(0.1307,),
        std=(0.3081,),
        hub_id="ylecun/mnist",
        hub_folder="mnist",
        folder="mnist",
    ),
    _images(
        name="cifar10",
        description="photographs 32x32 colour, 10 classes, 50,000 / 10,000 rows",
        num_classes=10,
        class_names=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
        input_shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        hub_id="uoft-cs/cifar10",
        hub_folder="plain_text",
        folder="cifar10",
        image_column="img",
    ),
    _images(
        name="cifar100",
        description="photographs 32x32 colour, 100 classes, 50,000 / 10,000 rows",
        num_classes=100,
        input_shape=(3, 32, 32),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        hub_id="uoft-cs/cifar100",
        hub_folder="cifar100",
        folder="cifar100",
        image_column="img",
        label_column="fine_label",
    ),
    _images(
        name="svhn",
        description="house numbers 32x32 colour, 73,257 / 26,032 rows, no extra rows",
        num_classes=10,
        input_shape=(3, 32, 32),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        hub_id="ufldl-stanford/svhn",
        hub_folder="cropped_digits",
        folder="svhn",
    ),
    _images(
        name="tiny-imagenet",
        description="photographs 64x64 colour, 200 classes, 100,000 / 10,000 rows",
        num_classes=200,
        input_shape=(3, 64, 64),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        hub_id="zh-plus/tiny-imagenet",
        folder="tiny_imagenet",
        test_splits=("valid",),
    ),
    _images(
        name="cinic10",
        description="photographs 32x32 colour, 10 classes, 90,000 / 90,000 rows",
        num_classes=10,
        input_shape=(3, 32, 32),
        mean=(0.4789, 0.4723, 0.4305),
        std=(0.2421, 0.2383, 0.2587),
        hub_id="flwrlabs/cinic10",
        folder="cinic10",
    ),
    _images(
        # The published splits separate people, so a person's rows are pooled and split
        # again; 84 x 84 pixels and the target are LEAF's conventions.
        name="celeba",
        description="faces 84x84 colour, smiling or not, 202,599 rows, owner: celebrity",
        num_classes=2,
        input_shape=(3, 84, 84),
        mean=(0.5068, 0.4262, 0.3835),
        std=(0.3103, 0.2903, 0.2896),
        hub_id="flwrlabs/celeba",
        hub_folder="img_align+identity+attr",
        folder="celeba",
        train_splits=("train", "valid", "test"),
        test_splits=(),
        label_column="Smiling",
        id_column="celeb_id",
        resize=True,
    ),
    _images(
        name="femnist",
        description="handwritten characters 28x28 grey, 62 classes, 814,277 rows, "
        "owner: writer",
        num_classes=62,
        input_shape=(1, 28, 28),
        mean=(0.9637,),
        std=(0.1550,),
        hub_id="flwrlabs/femnist",
        folder="femnist",
        test_splits=(),
        label_column="character",
        id_column="writer_id",
    ),
    DatasetSpec(
        name="reddit",
        description="LEAF's comments, ten words in, the next word of each out, owner: user",
        num_classes=reddit.VOCABULARY,
        input_shape=(reddit.LENGTH,),
        source=reddit.Reddit,
        folder="reddit",
        test_splits=(),
        files=("*.json",),
    ),
    DatasetSpec(
        name="heart-disease",
        description="920 patients, diseased or not, real, owner: one of four hospitals",
        num_classes=2,
        input_shape=(heart_disease.WIDTH,),
        source=heart_disease.HeartDisease,
        folder="heart_disease",
        test_splits=(),
        files=heart_disease.FILES,
    ),
    DatasetSpec(
        name="diabetes130",
        description="encounters of diabetics, readmitted or not, real, 101,766 rows before "
        "exclusions, owner: medical specialty or payer",
        num_classes=2,
        input_shape=(diabetes130.WIDTH,),
        source=diabetes130.Diabetes130,
        folder="diabetes130",
        test_splits=(),
        files=diabetes130.FILES[:1],
    ),
    DatasetSpec(
        name="tcga-brca",
        description="1,088 patients of breast cancer, days to death, real, owner: one of "
        "six regions",
        num_classes=1,
        input_shape=(tcga_brca.WIDTH,),
        source=tcga_brca.TcgaBrca,
        folder="tcga_brca",
        test_splits=(),
        files=tcga_brca.FILES,
        task="survival",
    ),
    DatasetSpec(
        name="own-table",
        description="tables of your own, Parquet or CSV, at sites or in data-dir",
        num_classes=2,
        input_shape=(1,),
        source=OwnTable,
        test_splits=(),
    ),
    DatasetSpec(
        name="own-pictures",
        description="folders of pictures of your own, at sites or in data-dir",
        num_classes=2,
        input_shape=(3, 28, 28),
        source=OwnPictures,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        test_splits=(),
        resize=True,
    ),
)


def _added(name: str, code: str, loaded: object) -> DatasetSpec:
    """Return the data set of a package or of one's own code."""
    if isinstance(loaded, DatasetSpec):
        return replace(loaded, name=name)
    if loaded is not None and not callable(loaded):
        raise ConfigError(
            f"{code} is a {type(loaded).__name__}: name a function or a DatasetSpec"
        )
    summary = (getattr(loaded, "__doc__", None) or "").partition("\n\n")[0]
    description = " ".join(summary.split())
    return DatasetSpec(name, description, 0, (), OwnRows, test_splits=(), reader=code)


DATASETS: Registry[DatasetSpec] = Registry(
    "dataset", "fedsuite.datasets", {s.name: s for s in _SPECS}, _added, takes_code=True
)
"""Data sets by the value of the key ``dataset``, also of installed packages."""

_DIVISIONS = (
    partition.Iid,
    partition.Shards,
    partition.Dirichlet,
    partition.DirichletClient,
    partition.Pathological,
    partition.PowerLaw,
    covariate_shift.CovariateShift,
    partition.ClassCount,
    partition.NaturalId,
)

PARTITIONERS: Mapping[str, type[Division]] = MappingProxyType(
    {division.NAME: division for division in _DIVISIONS}
)
"""Partitioners by the value of the key ``partitioner``."""
