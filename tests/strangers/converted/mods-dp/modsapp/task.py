import torch
from sklearn.datasets import load_breast_cancer


def build():
    return torch.nn.Sequential(
        torch.nn.Linear(30, 12), torch.nn.ReLU(), torch.nn.Linear(12, 2)
    )


def load(i, n):
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    y = torch.tensor(y)
    x, y = x[i::n], y[i::n]
    hold = torch.arange(len(y)) % 4 == 0
    return x[~hold], y[~hold], x[hold], y[hold]
