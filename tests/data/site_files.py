"""Folders of data as sites have them, made of the clients' parts of digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsuite.core.keys import Value
from fedsuite.data import load_federated_data
from fedsuite.data.federated import ClientData
from fedsuite.data.site import Site
from fedsuite.data.site_loading import load_site_rows, scaled_rows
from fedsuite.data.specs import DatasetSpec

NAMES = ("north", "east", "south")
DIVIDED: Mapping[str, Value] = {"dataset": "digits", "num-clients": 3}
"""The experiment whose division of digits the sites have."""

PIXELS = tuple(f"p{i:02d}" for i in range(64))


def load_site_data(
    site: Site,
    spec: DatasetSpec,
    scaling: str,
    test_fraction: float,
    validation_fraction: float = 0.0,
) -> ClientData:
    """Return a site's rows, checked, and scaled as far as the site can alone."""
    rows = load_site_rows(site, spec, test_fraction, validation_fraction)
    return scaled_rows(rows, spec, scaling)


def digits_columns(client_id: int, part: str) -> dict[str, Any]:
    """Return a client's rows as columns of raw pixels and a label."""
    split = getattr(load_federated_data(DIVIDED, 0).client(client_id), part)
    pixels = np.round(split.features.numpy().reshape(len(split), 64) * 16)
    columns: dict[str, Any] = {name: pixels[:, i] for i, name in enumerate(PIXELS)}
    return columns | {"label": split.labels.numpy()}


def write_site(folder: Path, client_id: int) -> Path:
    """Write a client's rows of digits as ``train-0.parquet`` and ``test-0.parquet``."""
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        write(folder / f"{part}-0.parquet", digits_columns(client_id, part))
    return folder


def write_sites(folder: Path) -> Path:
    """Write all sites below a folder."""
    for client_id, name in enumerate(NAMES):
        write_site(folder / name, client_id)
    return folder


def write(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write columns as a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path)
    return path
