"""Predictions of a run's model for data of its user's."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.files import atomic_write, write_error
from fedsuite.engines.trained.inputs import ROW_NAME, model_inputs
from fedsuite.engines.trained.network import model_of
from fedsuite.engines.trained.outputs import READINGS, Columns
from fedsuite.models.evaluation_mode import EVALUATION_BATCH
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.reader import Client, Run
from fedsuite.results.tables import csv_table


def predict(run: Run, data: Any, client: Client | None = None) -> Columns:
    """Return what a run's model predicts for data, see :meth:`Run.predict`."""
    facts = ModelFacts.read(run.path)
    inputs, names = model_inputs(data, facts)
    model = model_of(run, client)
    with torch.no_grad():
        parts = [model(part) for part in torch.split(inputs, EVALUATION_BATCH)]
    predicted = READINGS[facts.task](torch.cat(parts), facts.classes)
    return {ROW_NAME: np.array(names, dtype=object), **predicted} if names else predicted


def with_pandas(columns: Columns) -> Any:
    """Return a DataFrame where pandas is installed, else the columns."""
    if find_spec("pandas") is None:
        return columns
    import pandas as pd

    return pd.DataFrame(columns)


def write_predictions(columns: Columns, file: Path) -> None:
    """Write predictions as CSV or Parquet, as the file's name ends."""
    if file.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table(
            {name: pa.array(values.tolist()) for name, values in columns.items()}
        )
        try:
            pq.write_table(table, file)
        except OSError as error:
            raise write_error(file, error) from error
    elif file.suffix.lower() == ".csv":
        atomic_write(file, as_csv(columns).encode())
    else:
        raise RunError(f"{one_line(file)}: name a file that ends in .csv or .parquet")


def as_csv(columns: Columns) -> str:
    """Return predictions as CSV."""
    values: Sequence[Sequence[object]] = [column.tolist() for column in columns.values()]
    return csv_table([list(columns), *(list(row) for row in zip(*values, strict=True))])
