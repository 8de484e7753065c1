from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.bn = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn(self.fc1(x))))


def load_data(partition_id, num_partitions):
    x, y = load_digits(return_X_y=True)
    order = np.argsort(y, kind="stable")  # non-iid: sorted shards
    shards = np.array_split(order, 2 * num_partitions)
    idx = np.concatenate([shards[partition_id], shards[partition_id + num_partitions]])
    x = torch.tensor(x[idx] / 16, dtype=torch.float32)
    y = torch.tensor(y[idx])
    return train_test_split(x, y, test_size=0.2, random_state=42)


def get_weights(net):
    return [val.cpu().numpy() for _, val in net.state_dict().items()]


def set_weights(net, parameters):
    params_dict = zip(net.state_dict().keys(), parameters)
    state_dict = OrderedDict({k: torch.tensor(v) for k, v in params_dict})
    net.load_state_dict(state_dict, strict=True)


def train(net, x, y, epochs, lr):
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    crit = nn.CrossEntropyLoss()
    net.train()
    total, n = 0.0, 0
    for _ in range(epochs):
        perm = torch.randperm(len(x))
        for b in perm.split(32):
            if len(b) < 2:
                continue
            opt.zero_grad()
            loss = crit(net(x[b]), y[b])
            loss.backward()
            opt.step()
            total += loss.item()
            n += 1
    return total / n


def test(net, x, y):
    net.eval()
    with torch.no_grad():
        out = net(x)
    return nn.CrossEntropyLoss()(out, y).item(), (out.argmax(1) == y).float().mean().item()
