"""digitscnn: A Flower / PyTorch app."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc(x.flatten(1))


def _digits():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return x, torch.tensor(y)


def load_data(partition_id, num_partitions, batch_size):
    x, y = _digits()
    x, y = x[:1500], y[:1500]
    rng = np.random.default_rng(0)
    owner = np.empty(len(y), dtype=int)
    for c in range(10):  # Dirichlet partition
        rows = np.flatnonzero(y.numpy() == c)
        owner[rows] = rng.choice(
            num_partitions, len(rows), p=rng.dirichlet([0.5] * num_partitions)
        )
    idx = np.flatnonzero(owner == partition_id)
    cut = int(0.8 * len(idx))
    tr, te = idx[:cut], idx[cut:]
    return (
        DataLoader(TensorDataset(x[tr], y[tr]), batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(x[te], y[te]), batch_size=batch_size),
    )


def load_centralized():
    x, y = _digits()
    return DataLoader(TensorDataset(x[1500:], y[1500:]), batch_size=128)


def train(net, trainloader, epochs, lr, device):
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    net.to(device)
    net.eval()
    criterion = nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += criterion(outputs, labels.to(device)).item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
