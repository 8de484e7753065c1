"""Pictures in folders of their classes: ``train/CLASS/*.png`` and ``test/CLASS/*.png``.

Without ``train`` and ``test``, the folders ``CLASS/`` themselves are read, and a test part
is drawn. A class is a name that the data set knows, or else a number from 0: it never
follows from which folders there are, since a site may lack a class.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError
from fedsuite.core.reading import read_named
from fedsuite.data.pictures import decode
from fedsuite.data.specs import DatasetSpec

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""Ends of the names of files that are pictures."""

OWN_PICTURES = "own-pictures"
"""The data set whose classes an experiment names."""

_PARTS = ("train", "test")
_LISTED = 5


def has_picture_folders(folder: Path) -> bool:
    """Return whether a folder has folders with pictures in it, and no table."""
    roots = [root for root in (folder / "train", folder / "test", folder) if root.is_dir()]
    return any(_pictures(sub) for root in roots for sub in _folders(root))


def read_picture_folders(
    spec: DatasetSpec, folder: Path
) -> tuple[dict[str, npt.NDArray[Any]], bool]:
    """Return the pictures of a folder, and whether it has a test part.

    Returns
    -------
    dict, bool
        ``features`` (8-bit), ``labels`` and ``num_train``, those of the test part last.

    Raises
    ------
    DataError
        If a class is unknown, a part is missing, or a picture cannot be read; one line that
        has all.
    """
    roots = [folder / part for part in _PARTS if (folder / part).is_dir()]
    if len(roots) == 1:
        missing = next(part for part in _PARTS if folder / part not in roots)
        raise DataError(
            f"{folder}: no folder {missing} beside the other part: make both, or neither"
        )
    faults: list[str] = []
    for root in roots or [folder]:
        _check_classes(spec, root, faults)
    parts = [_read_part(spec, root, faults) for root in roots or [folder]]
    if faults:
        more = f"; {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
        raise DataError("; ".join(faults[:_LISTED]) + more)
    features = [picture for pictures, _ in parts for picture in pictures]
    labels = [label for _, numbers in parts for label in numbers]
    if not labels:
        raise DataError(f"{folder}: no picture in any folder: put some there")
    arrays: dict[str, npt.NDArray[Any]] = {
        "features": np.stack(features),
        "labels": np.array(labels, np.int64),
        "num_train": np.array(len(parts[0][1])),
    }
    return arrays, len(parts) > 1


def _check_classes(spec: DatasetSpec, root: Path, faults: list[str]) -> None:
    numbers = [f"0 to {spec.num_classes - 1}"]
    known = spec.class_names if spec.name == OWN_PICTURES else numbers
    for folder in _folders(root):
        if _class_of(spec, folder.name) is None:
            faults.append(f"{folder}: no class {folder.name!r}; there are {_some(known)}")


def _read_part(
    spec: DatasetSpec, root: Path, faults: list[str]
) -> tuple[list[npt.NDArray[np.uint8]], list[int]]:
    pictures, labels = [], []
    for folder in _folders(root):
        label = _class_of(spec, folder.name)
        if label is None:
            continue
        for file in _pictures(folder):
            try:
                pixels = decode(read_named(file), *spec.input_shape, resize=spec.resize)
            except (DataError, OSError) as error:
                faults.append(f"{file}: {error}")
                continue
            pictures.append(pixels)
            labels.append(label)
    return pictures, labels


def _class_of(spec: DatasetSpec, name: str) -> int | None:
    if name in spec.class_names:
        return spec.class_names.index(name)
    if spec.name == OWN_PICTURES:
        return None
    # Names of known classes may be none for folders, such as T-shirt/top.
    number = int(name) if name.isascii() and name.isdecimal() else -1
    return number if 0 <= number < spec.num_classes else None


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures of a folder by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
