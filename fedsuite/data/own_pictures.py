"""Pictures of one's own in folders of their classes, at sites or in one folder."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.settings import key
from fedsuite.data.picture_folders import read_picture_folders
from fedsuite.data.specs import DatasetSpec, RawData, Source


class OwnPictures(Source):
    """What pictures are made to have in common."""

    READS_FOLDER: ClassVar[bool] = True

    picture_classes: str = key(
        default="",
        help="names of the classes, which are the names of their folders, comma-separated "
        "and in order; the same at all sites, also where a site lacks a class",
    )
    picture_size: int = key(
        default=28,
        help="pixels on each side that all pictures are resized to",
        minimum=4,
        maximum=1024,
    )
    picture_colours: Literal["grey", "rgb"] = key(
        default="rgb", help="grey makes one channel of colour, rgb three of grey"
    )

    @override
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        if data_dir is None:
            raise ConfigError(
                f"key dataset = {spec.name!r}: name the folder of the pictures with "
                'data-dir, or the sites that have them with sites = "A, B"'
            )
        arrays, has_test = read_picture_folders(spec, data_dir)
        return RawData(
            arrays["features"],
            arrays["labels"],
            num_train=int(arrays["num_train"]) if has_test else None,
        )

    @override
    def shaped(self, spec: DatasetSpec) -> DatasetSpec:
        names = tuple(n.strip() for n in self.picture_classes.split(",") if n.strip())
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(
                f"key picture-classes = {self.picture_classes!r}: name two or more "
                "folders, each once"
            )
        channels = 1 if self.picture_colours == "grey" else 3
        return replace(
            spec,
            input_shape=(channels, self.picture_size, self.picture_size),
            num_classes=len(names),
            class_names=names,
            mean=(0.0,) * channels,
            std=(1.0,) * channels,
        )
