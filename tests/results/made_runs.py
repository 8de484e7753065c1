"""Run folders with numbers that a test can follow by hand, or that look like real ones."""

import csv
from pathlib import Path

import numpy as np

from fedsuite.results.writer import RunFolder

EXPERIMENT = {
    "method": "fedavg",
    "dataset": "digits",
    "seed": 0,
    "num-rounds": 3,
    "learning-rate": 0.1,
    "output-dir": "runs/one",
}


def make_run(
    path, *, experiment=None, accuracies=((0.5, 0.7),), status="finished", **manifest
):
    """Make a run whose round r has the r-th tuple of client accuracies, from round 1."""
    settings = EXPERIMENT | {"output-dir": str(path)} | (experiment or {})
    folder = RunFolder.create(
        Path(path),
        settings,
        {"seed": settings["seed"], "data_fingerprint": "f00d"} | manifest,
    )
    for server_round, values in enumerate(accuracies, start=1):
        folder.append(
            "clients",
            [
                {
                    "round": server_round,
                    "phase": "evaluate",
                    "client": client,
                    "num_examples": 20,
                    "loss": 1 - value,
                    "accuracy": value,
                }
                for client, value in enumerate(values)
            ],
        )
        worst = sorted(values)[: -(-len(values) // 10)]
        folder.append(
            "rounds",
            [
                {
                    "round": server_round,
                    "train_loss": 2 / server_round,
                    "evaluate_loss": 1 - float(np.mean(values)),
                    "accuracy_mean": float(np.mean(values)),
                    "accuracy_worst10": float(np.mean(worst)),
                    "clients_trained": len(values),
                }
            ],
        )
    if status != "running":
        folder.finish(status)
    return folder


def learning_curves(num_rounds, num_clients, *, level=0.87, spread=0.08, seed=0):
    """Return accuracies of shape (rounds, clients) that rise, level off, and jitter."""
    generator = np.random.default_rng(seed)
    plateau = np.clip(level + spread * generator.standard_normal(num_clients), 0.05, 0.99)
    rounds = np.arange(1, num_rounds + 1)[:, None]
    rise = 1 - np.exp(-rounds / (0.12 * num_rounds))
    noise = 0.03 * generator.standard_normal((num_rounds, num_clients))
    return np.clip(0.1 + (plateau - 0.1) * rise + noise, 0, 1)


def written(name, folder="analysis"):
    """Return the rows of an analysis' CSV, after checking its other file."""
    stem = Path(folder) / name
    with open(stem.with_suffix(".csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    markdown = stem.with_suffix(".md").read_text()
    assert markdown.startswith(f"| {next(iter(rows[0]))} |")
    return rows
