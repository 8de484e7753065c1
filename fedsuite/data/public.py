"""Public data, inputs without labels that all clients share."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import ConfigError, DataError, Refused
from fedsuite.data.parquet import load_images, raw_units
from fedsuite.data.specs import DatasetSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PublicData:
    """Public inputs without labels, shared between callers: never write into them.

    Parameters
    ----------
    features
        ``[rows, *input_shape]``, scaled as private inputs are.
    """

    features: "torch.Tensor"

    def __len__(self) -> int:
        return len(self.features)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over shape, type and little-endian bytes of the features."""
        values = self.features.numpy()
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        digest = hashlib.sha256(f"{values.shape};{values.dtype.str};".encode())
        digest.update(values.data)
        return digest.hexdigest()


@dataclass(frozen=True)
class PublicOptions:
    """Keys ``public-size``, ``public-used`` and ``public-dir``.

    Without ``folder``, rows of the training part are held out.
    """

    size: int = 0
    used: int = 0
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.used > self.size and (self.size or self.folder is None):
            raise Refused(
                {"public-used": self.used, "public-size": self.size},
                "there are no more rows",
                "set no more",
            )

    @property
    def held_out(self) -> int:
        """Number of rows taken from the training part."""
        return self.size if self.folder is None else 0

    def choose(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rows that are used; refuse too few."""
        for name, count in (("public-size", self.size), ("public-used", self.used)):
            if count > len(rows):
                raise DataError(
                    f"key {name} = {count}: folder {self.folder} (public-dir) holds "
                    f"{len(rows)} images; ask for fewer"
                )
        return rows[: self.used or self.size or None]


def read_public_folder(spec: DatasetSpec, folder: Path) -> npt.NDArray[Any]:
    """Return the images of a folder, in the units of the data set's raw features."""
    if not spec.is_image:
        raise ConfigError(
            f"key public-dir = {str(folder)!r}: dataset {spec.name} has no images; leave "
            "it empty and hold out rows with public-size"
        )
    try:
        return raw_units(spec, load_images(spec, folder))
    except DataError as error:
        raise DataError(f"key public-dir: {error}") from error
