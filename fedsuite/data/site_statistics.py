"""What a site tells of its table before training, such that it tells of nobody in it.

A site tells nothing of fewer than ``least-rows`` training rows (node-config). Of more it
tells their number, and:

* by column, how many values are missing, and between which bounds the values lie, leaving
  out as many of the smallest and of the largest as ``least-rows`` says, the bounds rounded
  to two digits of their distance: no bound is a person's value;
* by class, how many rows it has. A number below ``least-rows`` is told as that, and where
  one is hidden the next smallest is too: else the total would give it away.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsuite.core.errors import DataError
from fedsuite.core.keys import Value
from fedsuite.core.reading import bounded, is_number
from fedsuite.core.text import escape_taken
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.federated import number_positions
from fedsuite.data.site import Site
from fedsuite.data.site_loading import load_site_rows
from fedsuite.data.site_parquet import schema_of
from fedsuite.data.specs import DatasetSpec

Statistics = dict[str, Any]
"""``rows``, ``columns`` (name to ``missing`` and ``range``) and ``classes``, as JSON."""

_MOST = 2000
"""Columns and classes of a site that are told."""


def federated_spec(values: Mapping[str, Value]) -> DatasetSpec:
    """Return the data set of an experiment with sites."""
    spec = DataSettings.of(values).spec
    return spec.source.of(values).shaped(spec)


def site_statistics(site: Site, spec: DatasetSpec, test_fraction: float) -> Statistics:
    """Return what a site tells of its training rows.

    Parameters
    ----------
    site
        The site, whose ``least_rows`` decides what stays.
    spec
        The data set that its rows should match. Missing values are counted, whatever its
        schema does about them.
    test_fraction
        As the key ``test-fraction``: test rows have no part in this.

    Raises
    ------
    FedsuiteError
        If the rows cannot be read.
    """
    schema = schema_of(site, spec)
    if schema is not None and schema.missing == "refuse" and not schema.tokens:
        schema = replace(schema, missing="mean")
        spec = replace(spec, schema=schema)
        site = replace(site, schema=schema)
    data = load_site_rows(site, spec, test_fraction)
    rows, least = data.train, site.least_rows
    if len(rows) < least:
        return {"rows": f"fewer than {least}", "columns": {}, "classes": {}}
    told: Statistics = {"rows": len(rows), "columns": {}, "classes": {}}
    if not spec.is_image and not spec.words:
        names = data.columns if schema is None else schema.inputs
        values = rows.features.numpy().reshape(len(rows), -1)
        for position in number_positions(spec)[:_MOST]:
            name = names[position] if position < len(names) else f"number {position}"
            told["columns"][name] = _of_column(values[:, position], least)
        for position, name in enumerate(names):
            if schema is not None and position not in schema.number_positions:
                count = int(values[:, position].sum())
                told["columns"][name] = {"rows": _count(count, least)}
    labels = rows.labels.numpy()
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        told["classes"] = _of_classes(labels, spec, least)
    return told


def _of_column(values: npt.NDArray[np.float32], least: int) -> dict[str, Any]:
    present = np.sort(values[~np.isnan(values)].astype(np.float64))
    told: dict[str, Any] = {"missing": _count(len(values) - len(present), least)}
    if len(present) <= 2 * least:
        return {**told, "range": None}
    low, high = float(present[least]), float(present[-1 - least])
    return {**told, "range": list(_rounded(low, high))}


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Return bounds rounded outwards to two digits of their distance."""
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** (math.floor(math.log10(span)) - 1)
    digits = max(0, -math.floor(math.log10(step)))
    bounds = math.floor(low / step) * step, math.ceil(high / step) * step
    return round(bounds[0], digits), round(bounds[1], digits)


def _count(count: int, least: int) -> int | str:
    return count if count == 0 or count >= least else f"fewer than {least}"


def _of_classes(
    labels: npt.NDArray[np.int64], spec: DatasetSpec, least: int
) -> dict[str, int | str]:
    counts = np.bincount(labels, minlength=spec.num_classes)
    hidden = set(np.flatnonzero(counts < least).tolist())
    if len(hidden) == 1 and len(counts) > 1:
        others = (k for k in np.argsort(counts, kind="stable").tolist() if k not in hidden)
        hidden.add(next(others))
    names = spec.class_names or tuple(map(str, range(spec.num_classes)))
    few = f"fewer than {least}"
    return {
        name: ((few if counts[k] < least else "not told") if k in hidden else int(count))
        for k, (name, count) in enumerate(zip(names, counts.tolist(), strict=True))
    }


def parsed(text: str) -> Statistics:
    """Return statistics that a site told; refuse anything else.

    Raises
    ------
    DataError
        If it is no statistics.
    """
    try:
        told = bounded(text)
        columns, classes = told["columns"], told["classes"]
        entries = [told["rows"], *classes.values()]
        entries += [c["rows"] if "rows" in c else c["missing"] for c in columns.values()]
        bounds = [c["range"] for c in columns.values() if c.get("range") is not None]
        kinds = all(isinstance(entry, int | str) for entry in entries)
        kinds = kinds and all(is_number(low) and is_number(high) for low, high in bounds)
        names = [*columns, *classes, *(e for e in entries if isinstance(e, str))]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError("told no statistics") from None
    if not kinds or len(names) > 4 * _MOST or any(map(escape_taken, names)):
        raise DataError("told no statistics")
    return {"rows": told["rows"], "columns": columns, "classes": classes}


def statistics_lines(by_site: Mapping[str, Statistics]) -> list[str]:
    """Return lines that show the statistics of all sites, column by column."""
    lines = [f"training rows: {_sites({s: t['rows'] for s, t in by_site.items()})}"]
    for kind, title in (("classes", "class"), ("columns", "column")):
        names = dict.fromkeys(name for told in by_site.values() for name in told[kind])
        for name in names:
            cells = {site: _cell(told[kind].get(name)) for site, told in by_site.items()}
            lines.append(f"{title} {name}: {_sites(cells)}")
    return lines


def _cell(told: object) -> str:
    if not isinstance(told, Mapping):
        return "-" if told is None else str(told)
    if "rows" in told:
        return f"{told['rows']} rows"
    bounds = told.get("range")
    between = f"{bounds[0]:g} to {bounds[1]:g}" if bounds else "range not told"
    return f"{between}, missing {told['missing']}"


def _sites(cells: Mapping[str, object]) -> str:
    return "; ".join(f"{site} {cell}" for site, cell in cells.items())
