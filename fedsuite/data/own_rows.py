"""Rows that a function of one's own reads, for ``dataset = "module:function"``.

The function is called as ``function(data_dir, test_fraction)`` and returns a
:class:`~fedsuite.data.site.SiteData`, as the adapter of a site does. It must return the
same rows in every process. Shape and classes are those of the rows: 8-bit inputs
``[rows, channels, height, width]`` are images, scaled to 0..1; float32 inputs are taken as
they are; int64 inputs ``[rows, length]`` are numbers of words, for an embedding.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fedsuite.core.errors import DataError, FedsuiteError, one_line
from fedsuite.core.plug_ins import import_code
from fedsuite.core.rng import seeded
from fedsuite.core.settings import given
from fedsuite.data.owners import numbered
from fedsuite.data.specs import DatasetSpec, RawData, Source

_SEED = 0  # the same rows for all seeds of an experiment


class OwnRows(Source):
    """The rows of a function of one's own."""

    test_fraction: float = given(default=0.2, help="part of the rows to hold out for tests")

    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        """Call the function, check what it returns, and join the two parts.

        The rows of a subject, if there are any, are a group. Owners are numbered in the
        order of their names.
        """
        from fedsuite.data.site_loading import both_parts, check_rows, site_data

        where = f"dataset {spec.name}"
        try:
            read: Any = import_code(spec.reader)
            with seeded(_SEED):
                data = read(data_dir, self.test_fraction)
        except FedsuiteError as error:
            raise DataError(f"{where}: {error}") from error
        except Exception as error:
            # Somebody else's code may raise anything.
            raise DataError(
                f"{where}: reading failed ({type(error).__name__}: {one_line(error)}): "
                "mend it or the data"
            ) from error
        checked = site_data(where, "function", data)
        parts = both_parts(where, checked)
        # Labels that are none of the task's are refused below.
        width = max(_width(part.labels.numpy()) for part in parts)
        described = _described(spec, parts[0].features.numpy(), width)
        check_rows(where, "function", described, checked)
        types = [str(part.features.dtype) for part in parts]
        if types[0] != types[1]:
            raise DataError(
                f"{where}: inputs are {types[0]} in the training part and {types[1]} in "
                "the test part: give both one type"
            )
        owners = None if checked.owners is None else np.concatenate(checked.owners)
        ids, names = (None, ()) if owners is None else numbered(owners)
        return RawData(
            np.concatenate([part.features.numpy() for part in parts]),
            np.concatenate([part.labels.numpy() for part in parts]),
            num_train=len(parts[0]),
            ids=ids,
            groups=None if checked.ids is None else np.concatenate(checked.ids),
            columns=checked.columns,
            owner_names=names,
        )

    @override
    def described(self, spec: DatasetSpec, raw: RawData) -> DatasetSpec:
        described = _described(spec, raw.features, _width(raw.labels))
        return replace(described, columns=raw.columns)


def _width(labels: npt.NDArray[Any]) -> int:
    """Return the number of classes or labels; 1 of numbers."""
    if labels.ndim == 2:
        return int(labels.shape[1])
    return int(labels.max()) + 1 if labels.dtype.kind in "iu" else 1


def _described(spec: DatasetSpec, features: npt.NDArray[Any], width: int) -> DatasetSpec:
    shape = features.shape[1:]
    is_image = features.dtype == np.uint8 and len(shape) == 3
    channels = shape[0] if is_image else 0
    words = features.dtype == np.int64
    return replace(
        spec,
        input_shape=shape,
        num_classes=spec.num_classes if spec.labels.has_own_width else width,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        words=words,
    )
