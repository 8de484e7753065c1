"""Write an experiment's data and initial parameters for loops that know no fedsuite.

    python -m measuring.prepare EXPERIMENT FOLDER [KEY=VALUE ...]

Into FOLDER go ``experiment.toml`` (resolved), ``settings.json`` (what the peers need),
``facts.json`` (versions, and whether the local engine takes workers), ``initial.npz``, and
the scaled rows client after client as ``.npy``. With ``--no-data`` only the first.
"""

import argparse
import itertools
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedsuite.core.keys import Value
from fedsuite.data import ClientData, FederatedData
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.experiment.experiment import Experiment, parse_assignment, read_file
from fedsuite.experiment.key_catalog import known_keys
from measuring.record import where

PLAIN: dict[str, Value] = {
    "method": "fedavg",
    "server-learning-rate": 1.0,
    "optimizer": "sgd",
    "momentum": 0.0,
    "weight-decay": 0.0,
    "clip-gradient-norm": 0.0,
    "learning-rate-decay": 1.0,
    "crop-and-flip": False,
    "task": "auto",
    "loss": "auto",
    "client-models": "",
    "server-momentum": 0.0,
    "hidden-layers": 2,
}
"""Values that the peers take for granted, where an experiment has the key."""

SETTINGS = (
    "model",
    "hidden-width",
    "num-clients",
    "clients-per-round",
    "num-rounds",
    "local-epochs",
    "local-steps",
    "batch-size",
    "learning-rate",
    "evaluate-every",
    "seed",
    "threads",
)


def resolve(file: Path, overrides: dict[str, Value]) -> Experiment:
    """Return the experiment; one evaluated at its end alone stays so with other rounds."""
    file_values = read_file(file)
    if file_values.get("evaluate-every") == file_values.get("num-rounds", -1):
        rounds = overrides.get("num-rounds", file_values["num-rounds"])
        overrides = {"evaluate-every": rounds, **overrides}
    return Experiment.from_values({**file_values, "checkpoint-every": 0, **overrides})


def prepare(experiment: Experiment, folder: Path) -> None:
    """Write what the peers read."""
    _check_plain(experiment)
    data = federated_data(experiment)
    settings = {key: experiment[key] for key in SETTINGS if key in experiment.values}
    settings |= {"input-shape": list(data.input_shape), "num-classes": data.num_classes}
    (folder / "settings.json").write_text(json.dumps(settings, indent=1))
    model = experiment_model(experiment, data)
    np.savez(
        folder / "initial.npz", **{n: t.numpy() for n, t in model.state_dict().items()}
    )
    _write_part(data, folder, "train", data.partition.train, lambda client: client.train)
    _write_part(data, folder, "test", data.partition.test, lambda client: client.test)


def _check_plain(experiment: Experiment) -> None:
    for key, value in PLAIN.items():
        if experiment.values.get(key, value) != value:
            raise SystemExit(f"key {key} = {experiment[key]!r}: the peers have {value!r}")
    if not experiment["clients-per-round"]:
        raise SystemExit("key clients-per-round = 0: the peers need a number")


def _write_part(
    data: FederatedData,
    folder: Path,
    part: str,
    held: Sequence[np.ndarray],
    split: Callable[[ClientData], object],
) -> None:
    ends = np.cumsum([0, *map(len, held)])
    shape = (int(ends[-1]), *data.input_shape)
    features = np.lib.format.open_memmap(
        folder / f"{part}_features.npy", "w+", np.float32, shape
    )
    labels = np.empty(shape[0], np.int64)
    for client, (first, last) in enumerate(itertools.pairwise(ends)):
        rows = split(data.client(client))
        features[first:last] = rows.features.numpy()
        labels[first:last] = rows.labels.numpy()
    features.flush()
    np.save(folder / f"{part}_labels.npy", labels)
    np.save(folder / f"{part}_ends.npy", ends)


def facts() -> dict[str, object]:
    """Return what the results depend on besides the experiment."""
    python = platform.python_version()
    return {**where(), "python": python, "workers-key": "workers" in known_keys()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--no-data", action="store_true")
    arguments = parser.parse_args()
    overrides = dict(map(parse_assignment, arguments.overrides))
    experiment = resolve(arguments.experiment, overrides)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "experiment.toml").write_text(experiment.to_toml())
    if not arguments.no_data:
        prepare(experiment, arguments.folder)
        (arguments.folder / "facts.json").write_text(json.dumps(facts()))


if __name__ == "__main__":
    main()
