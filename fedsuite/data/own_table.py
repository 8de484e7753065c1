"""Tables of sites' own, of which the experiment knows only the shape."""

from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.settings import key
from fedsuite.data.specs import DatasetSpec, RawData, Source


class OwnTable(Source):
    """The shape of sites' tables; there are no rows."""

    table_columns: int = key(
        default=1, help="columns of numbers that each site's table has", minimum=1
    )
    table_classes: int = key(
        default=2, help="classes of its rows, numbered from 0", minimum=2
    )

    @override
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        raise ConfigError(
            f"key dataset = {spec.name!r}: it has no rows of its own; name those who have "
            'with sites = "A, B"'
        )

    @override
    def shaped(self, spec: DatasetSpec) -> DatasetSpec:
        shape = (self.table_columns,)
        return replace(spec, input_shape=shape, num_classes=self.table_classes)
