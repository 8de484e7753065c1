"""Tables of one's own: at sites, or in one folder that a column divides.

The experiment says what the columns are, by a schema (:mod:`fedsuite.data.schema`) or by
their number alone.
"""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from fedsuite.core.errors import ConfigError, DataError, Refused
from fedsuite.core.keys import Unless
from fedsuite.core.settings import key
from fedsuite.core.tasks import Task
from fedsuite.data.owners import numbered
from fedsuite.data.schema import TableSchema
from fedsuite.data.specs import DatasetSpec, RawData, Source

NAME = "own-table"


class OwnTable(Source):
    """What sites' tables, or those of one folder, have in common."""

    READS_FOLDER: ClassVar[bool] = True

    schema: str = key(
        default="",
        help="file (TOML or JSON) that names columns, target, classes, categories and what "
        "missing values become; each site has the same file, and refuses to train by "
        "another",
    )
    columns: str = key(
        default="",
        help="names of the columns of numbers, comma-separated and in order, where a file "
        "for schema says nothing more than these",
    )
    target: str = key(
        default="label",
        help="column of the classes, numbered from 0",
        needs=(Unless("columns", ""),),
    )
    table_columns: int = key(
        default=1,
        help="numbers that each row has, where neither schema nor columns names them",
        minimum=1,
    )
    table_classes: int = key(
        default=2,
        help="classes of its rows, numbered from 0; a schema says its own",
        minimum=2,
    )
    client_column: str = key(
        default="",
        help="column that names a row's hospital, or whoever else is one client: the table "
        "in data-dir is divided by it, clients in the order of the names",
    )

    @property
    def declared(self) -> TableSchema | None:
        """The schema; None where the experiment names no column.

        Raises
        ------
        ConfigError
            If it is none, or says otherwise than other keys.
        """
        if self.schema and self.columns:
            raise Refused(
                {"schema": self.schema, "columns": self.columns},
                "both name the columns",
                "leave one of them out",
            )
        if not self.schema and not self.columns:
            return None
        if self.columns:
            told = {"columns": self.columns, "target": self.target}
            schema = TableSchema.from_dict(
                {**told, "num-classes": self.table_classes}, "key columns"
            )
        elif self.schema.lstrip().startswith("{"):
            schema = TableSchema.parse(self.schema, "key schema")
        else:
            # A node opens no file that a message names.
            raise ConfigError(
                f"key schema = {self.schema!r}: the file is read by `fedsuite run` and "
                "`fedsuite deploy run`: start the run by one of them"
            )
        for name, value, usual, right in (
            ("table-columns", self.table_columns, 1, len(schema.inputs)),
            ("table-classes", self.table_classes, 2, schema.num_classes),
        ):
            if value not in (usual, right):
                raise ConfigError(
                    f"key {name} = {value}: the schema has {right}: leave the key out"
                )
        return schema

    @override
    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        from fedsuite.data.site import Site
        from fedsuite.data.site_parquet import read_files

        if data_dir is None:
            raise ConfigError(
                f"key dataset = {spec.name!r}: it has no rows of its own: name the folder "
                'of the files with data-dir, or the sites that have them with sites = "A, '
                'B"'
            )
        site = Site(spec.name, data_dir, owner_column=self.client_column)
        try:
            arrays, has_test, _ = read_files(site, spec)
        except DataError as error:
            raise DataError(str(error).replace(" in node-config", "")) from error
        owners = arrays.get("owners")
        if self.client_column and owners is None:
            raise DataError(
                f"key client-column = {self.client_column!r}: {data_dir} has no such column"
            )
        ids, names = (None, ()) if owners is None else numbered(owners)
        return RawData(
            arrays["features"],
            arrays["labels"],
            num_train=int(arrays["num_train"]) if has_test else None,
            ids=ids,
            groups=arrays.get("ids"),
            owner_names=names,
        )

    @override
    def shaped(self, spec: DatasetSpec) -> DatasetSpec:
        schema = self._for_task(self.declared, spec.labels)
        if schema is None:
            shape = (self.table_columns,)
            return replace(spec, input_shape=shape, num_classes=self.table_classes)
        width, names = schema.num_classes, schema.classes
        if spec.labels.has_own_width:
            width, names = spec.num_classes, spec.class_names
        elif not width:
            width, names = len(schema.targets), schema.targets
        return replace(
            spec,
            input_shape=(len(schema.inputs),),
            num_classes=width,
            label_column=schema.target,
            schema=schema,
            class_names=names,
            words=bool(schema.tokens),
        )

    def _for_task(self, schema: TableSchema | None, task: Task) -> TableSchema | None:
        """Return the schema with targets as a task has them; refuse others."""
        if schema is not None and self.columns and not task.has_classes:
            schema = replace(schema, num_classes=0)
        if (schema is None or schema.num_classes > 0) == task.has_classes:
            return schema
        if task.has_classes:
            raise ConfigError(
                f"task {task.name}: the schema has num-classes = 0, so targets that are "
                "numbers: set task = 'regression', or 'multi-label' for several targets"
            )
        raise ConfigError(
            f"task {task.name}: targets are numbers: name columns and target by the keys "
            "columns and target, or by a schema with num-classes = 0"
        )
