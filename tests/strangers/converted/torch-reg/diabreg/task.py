import torch
from sklearn.datasets import load_diabetes
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))


def load(pid, n):
    x, y = load_diabetes(return_X_y=True)
    order = x[:, 2].argsort(kind="stable")  # sites by body mass index
    x = torch.tensor(x[order] * 20, dtype=torch.float32)
    y = torch.tensor(y[order] / 100, dtype=torch.float32)[:, None]
    rows = torch.arange(len(x)).chunk(n)[pid]
    x, y = x[rows], y[rows]
    hold = torch.arange(len(x)) % 5 == 0
    return x[~hold], y[~hold], x[hold], y[hold]
