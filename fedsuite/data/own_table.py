"""Tables of sites' own, of which the experiment knows only the shape."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, Value
from fedsuite.data.specs import DatasetSpec, RawData

KEYS = (
    Key("table-columns", 1, "columns of numbers that each site's table has", minimum=1),
    Key("table-classes", 2, "classes of its rows, numbered from 0", minimum=2),
)


def load_own_table(spec: DatasetSpec, data_dir: Path | None, **options: Value) -> RawData:
    """Refuse, because only sites have rows."""
    raise ConfigError(
        f"key dataset = {spec.name!r}: it has no rows of its own; name those who have with "
        'sites = "A, B"'
    )


def shaped(spec: DatasetSpec, values: Mapping[str, Value]) -> DatasetSpec:
    """Return the data set, an own table with the experiment's shape."""
    if spec.keys != KEYS:
        return spec
    options = spec.options(values)
    columns, classes = options["table_columns"], options["table_classes"]
    assert isinstance(columns, int) and isinstance(classes, int)
    return replace(spec, input_shape=(columns,), num_classes=classes)
