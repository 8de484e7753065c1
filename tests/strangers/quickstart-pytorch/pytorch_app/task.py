"""Model, data and training."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HELD_OUT = 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.norm = nn.BatchNorm1d(54)
        self.fc = nn.Linear(54, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv(x)))
        return self.fc(self.norm(x.flatten(1)))


@cache
def dataset():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return images, torch.tensor(labels)


def load_data(partition_id, num_partitions, batch_size):
    images, labels = dataset()
    images = images[HELD_OUT * 20 :][partition_id::num_partitions]
    labels = labels[HELD_OUT * 20 :][partition_id::num_partitions]
    split = len(labels) * 4 // 5
    trainset = TensorDataset(images[:split], labels[:split])
    testset = TensorDataset(images[split:], labels[split:])
    return (
        DataLoader(trainset, batch_size=batch_size, shuffle=True),
        DataLoader(testset, batch_size=batch_size),
    )


def load_centralized_dataset():
    images, labels = dataset()
    return DataLoader(
        TensorDataset(images[: HELD_OUT * 20], labels[: HELD_OUT * 20]), batch_size=100
    )


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
    criterion = nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    net.eval()
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += criterion(outputs, labels.to(device)).item()
            correct += (outputs.argmax(dim=1) == labels.to(device)).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
