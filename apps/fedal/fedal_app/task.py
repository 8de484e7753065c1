"""The app's network and rows, for both sides."""

import numpy as np
import torch
from flwr.app import UserConfig
from sklearn.datasets import load_digits
from torch import nn

from fedsuite.data import Split

NUM_PUBLIC = 200


class Net(nn.Sequential):
    """A network for 8 x 8 images of digits; every second node has a wider one."""

    def __init__(self, node: int) -> None:
        width = 32 if node % 2 == 0 else 64
        super().__init__(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def public_rows() -> torch.Tensor:
    """Return inputs without labels, the same for all nodes and for the server."""
    images, _ = load_digits(return_X_y=True)
    return torch.tensor(images[:NUM_PUBLIC] / 16, dtype=torch.float32)


def load_rows(node_config: UserConfig) -> tuple[Split, Split]:
    """Return a node's training rows and test rows.

    A node of a federation names its own file, with ``features`` and ``labels``. In a
    simulation each node has a part of the digits, of a few kinds.
    """
    if "data" in node_config:
        with np.load(str(node_config["data"])) as file:
            images, labels = file["features"], file["labels"]
    else:
        images, labels = (rows[NUM_PUBLIC:] for rows in load_digits(return_X_y=True))
        order = np.argsort(labels, kind="stable")
        shards = np.array_split(order, 2 * int(node_config["num-partitions"]))
        mine = int(node_config["partition-id"])
        rows = np.concatenate([shards[mine], shards[mine - len(shards) // 2]])
        images, labels = images[rows] / 16, labels[rows]
    features = torch.tensor(images, dtype=torch.float32)
    targets = torch.tensor(labels, dtype=torch.int64)
    is_test = torch.arange(len(targets)) % 5 == 0
    train = Split(features[~is_test], targets[~is_test])
    return train, Split(features[is_test], targets[is_test])
