"""A prepared experiment: settings, rows client after client, and initial parameters."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Rows = tuple[Tensor, Tensor]
"""Inputs and labels."""


class Prepared:
    """What ``measuring.prepare`` wrote; rows are read when asked for.

    Parameters
    ----------
    folder
        Where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self._arrays = {
            path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")
        }

    def train(self, client: int) -> Rows:
        """Return a client's training rows."""
        return self._rows("train", client)

    def test(self, client: int | None = None) -> Rows:
        """Return a client's test rows, or all clients'."""
        return self._rows("test", client)

    def model(self) -> nn.Module:
        """Return the network with its initial parameters."""
        model = make_network(self.settings)
        with np.load(self.folder / "initial.npz") as initial:
            model.load_state_dict({k: torch.from_numpy(initial[k]) for k in initial})
        return model

    def is_evaluated(self, server_round: int) -> bool:
        """Return whether the model is evaluated after a round."""
        rounds, every = self.settings["num-rounds"], self.settings["evaluate-every"]
        return server_round == rounds or server_round % every == 0

    def _rows(self, part: str, client: int | None) -> Rows:
        whole = slice(None)
        if client is not None:
            first, last = self._arrays[f"{part}_ends"][client : client + 2]
            whole = slice(int(first), int(last))
        return (
            torch.from_numpy(_read(self._arrays[f"{part}_features"], whole)),
            torch.from_numpy(_read(self._arrays[f"{part}_labels"], whole)),
        )


def _read(mapped: np.memmap, rows: slice) -> np.ndarray:
    """Return rows of a mapped array; read, since mapped ones would stay in memory."""
    first, last, _ = rows.indices(len(mapped))
    shape = (last - first, *mapped.shape[1:])
    size = mapped[:1].nbytes
    flat = np.fromfile(
        mapped.filename, mapped.dtype, math.prod(shape), offset=mapped.offset + first * size
    )
    return flat.reshape(shape)


def make_network(settings: dict[str, Any]) -> nn.Module:
    """Return one of the benchmarks' networks: by hand, but for ResNet-18."""
    channels, *side = settings["input-shape"]
    pixels, classes = int(np.prod(settings["input-shape"])), settings["num-classes"]
    if settings["model"] == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))
    if settings["model"] == "mlp":
        width = settings["hidden-width"]
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(pixels, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )
    if settings["model"] == "cnn-pfl":
        left = ((side[0] - 4) // 2) * ((side[1] - 4) // 2)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * left, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
    if settings["model"] == "lenet-5":
        left = ((side[0] // 2 - 4) // 2) * ((side[1] // 2 - 4) // 2)
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * left, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )
    if settings["model"] == "resnet18":
        # It asks for torch alone, which all environments have.
        from fedsuite.models.resnet import resnet18

        return resnet18(settings["input-shape"], classes)
    raise ValueError(f"the peers have no network {settings['model']!r}")


@torch.no_grad()
def evaluate(model: nn.Module, rows: Rows) -> tuple[float, int]:
    """Return summed loss and number of right predictions."""
    loss, right = 0.0, 0
    model.eval()
    for features, labels in zip(*(part.split(128) for part in rows), strict=True):
        logits = model(features)
        loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        right += int((logits.argmax(dim=1) == labels).sum())
    model.train()
    return loss, right


def end_round(output: Path, server_round: int, **facts: float) -> None:
    """Append a round's line; its appearance is what is timed."""
    line = {"round": server_round, "time": time.time(), **facts}
    with (output / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def save_model(output: Path, state: dict[str, Tensor]) -> None:
    """Write the final parameters, for the comparison."""
    arrays = {name: tensor.detach().numpy() for name, tensor in state.items()}
    np.savez(output / "model.npz", **arrays)
