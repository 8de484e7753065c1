"""Model, data and training."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

HELD_OUT = 100


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def dataset():
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def load_data(partition_id, num_partitions):
    images, labels = (part[HELD_OUT:][partition_id::num_partitions] for part in dataset())
    split = len(labels) * 4 // 5
    return (images[:split], labels[:split]), (images[split:], labels[split:])


def load_test_data():
    images, labels = dataset()
    return images[:HELD_OUT], labels[:HELD_OUT]


def train(net, images, labels, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            loss = cross_entropy(net(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net, images, labels):
    outputs = net(images)
    accuracy = (outputs.argmax(dim=1) == labels).float().mean().item()
    return cross_entropy(outputs, labels).item(), accuracy
