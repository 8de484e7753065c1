"""Pictures of partitions: the classes of each client's rows, drawn by fedsuite itself."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedsuite.core.keys import Value
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment

PICTURES: dict[str, dict[str, Value]] = {
    "dirichlet_0.1": {"partitioner": "dirichlet", "dirichlet-alpha": 0.1},
    "dirichlet_1": {"partitioner": "dirichlet", "dirichlet-alpha": 1.0},
    "dirichlet_100": {"partitioner": "dirichlet", "dirichlet-alpha": 100.0},
    "shards": {"partitioner": "shards", "shards-per-client": 2},
}
"""Name of each picture, and the keys that differ from an experiment on digits."""

GREY = "#808080"
"""Reads on light and on dark pages."""


def counts_of(keys: dict[str, Value]) -> np.ndarray:
    """Return the rows by client and class, ``[10, 10]``, on digits with ten clients."""
    # A client may have few rows, since the picture is of the division alone.
    lowest = {"dirichlet-min-size": 1} if keys["partitioner"] == "dirichlet" else {}
    values = {"dataset": "digits", "num-clients": 10, **lowest, **keys}
    return np.asarray(federated_data(Experiment.from_values(values)).class_counts())


def write_partitions(folder: Path) -> None:
    """Write one SVG per picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, keys in PICTURES.items():
        _draw(counts_of(keys), folder / f"{name}.svg")


def _draw(counts: np.ndarray, path: Path) -> None:
    """Draw a dot for each client and class, its area the number of rows."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    clients, classes = np.nonzero(counts)
    sizes = 1.6 * counts[clients, classes]
    axes.scatter(clients, classes, s=sizes, color="#1f77b4", alpha=0.8, linewidth=0)
    totals = [f"{client}\n{rows}" for client, rows in enumerate(counts.sum(axis=1))]
    axes.set_xticks(range(counts.shape[0]), totals, fontsize="small")
    axes.set_yticks(range(counts.shape[1]))
    axes.set_ylim(-0.8, counts.shape[1] - 0.2)
    axes.set_xlabel("client, and its rows")
    axes.set_ylabel("digit")
    axes.tick_params(colors=GREY)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    figure.savefig(path, transparent=True, metadata={"Date": None})
